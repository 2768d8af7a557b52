#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "codec/weight_matrix.h"
#include "format/tensor_role.h"

/// The ports through which the forward pass reads its weights. `residency` implements them, and
/// tests implement them over plain memory. Nothing here distinguishes disk from RAM.
namespace thimble {

/// Takes back what was lent.
class Lender {
 public:
  virtual void Return(uint64_t ticket) noexcept = 0;

 protected:
  ~Lender() = default;
};

/// A borrowed view, valid until dropped. Move-only. A lease must be dropped before its lender goes.
template <typename View>
class Lease {
 public:
  Lease() = default;
  Lease(const View& view, Lender* lender, uint64_t ticket)
      : view_(view), lender_(lender), ticket_(ticket) {}
  ~Lease() {
    if (lender_ != nullptr) lender_->Return(ticket_);
  }
  Lease(Lease&& other) noexcept
      : view_(other.view_),
        lender_(std::exchange(other.lender_, nullptr)),
        ticket_(other.ticket_) {}
  Lease& operator=(Lease&& other) noexcept {
    std::swap(view_, other.view_);
    std::swap(lender_, other.lender_);
    std::swap(ticket_, other.ticket_);
    return *this;
  }

  const View& operator*() const { return view_; }
  const View* operator->() const { return &view_; }

 private:
  View view_ = {};
  Lender* lender_ = nullptr;  // null: nothing to return
  uint64_t ticket_ = 0;
};

/// The layer index of tensors outside the layers.
inline constexpr size_t kNoLayer = SIZE_MAX;

struct TensorAddress {
  size_t layer;  // or kNoLayer
  TensorRole role;
  bool operator==(const TensorAddress&) const = default;
};

/// Rows of a matrix that must be lent together: a head's keys and values in kv_b. 1 for every other
/// tensor.
size_t RowGranule(const ModelConfig& config, TensorRole role);

/// The trunk: everything except the routed experts. Called from the thread that runs the sweep.
/// Acquire and ReadEmbeddings throw Error(kRuntime) if the data cannot be read; the sweep is then
/// lost, and the next BeginSweep starts over.
class LayerSource {
 public:
  virtual ~LayerSource() = default;

  /// A sweep reads the tensors of LayerTensors for each layer in turn, each from its first row to
  /// its last, and then, if `with_head`, those of GlobalTensors except the embedding.
  virtual void BeginSweep(bool with_head) = 0;
  /// Lends rows of a tensor from `first_row`: a whole number of granules, at least one, as many as
  /// the source finds convenient. Small tensors are lent whole. Waits for the data if necessary.
  virtual Lease<WeightMatrix> Acquire(const TensorAddress& tensor, size_t first_row) = 0;
  /// Writes the embedding rows of `tokens` to out[tokens.size(), hidden_size]. Ids are in range.
  virtual void ReadEmbeddings(std::span<const uint32_t> tokens, float* out) = 0;
};

/// A routed expert: gate (w1) and up (w3) [inner, width], down (w2) [width, inner].
struct ExpertView {
  uint32_t expert = 0;
  WeightMatrix gate;
  WeightMatrix up;
  WeightMatrix down;
};

/// The routed experts. Called from the thread that runs the sweep. Throws like LayerSource.
class ExpertSource {
 public:
  virtual ~ExpertSource() = default;

  /// Starts to read `experts` of `layer`: distinct, ascending. Discards what is left of the
  /// previous request.
  virtual void Request(size_t layer, std::span<const uint32_t> experts) = 0;
  /// Lends one of the requested experts, each once, in order of arrival. Waits if necessary. Drop
  /// each lease before taking the next: a source may have room for only one.
  virtual Lease<ExpertView> Next() = 0;
};

}  // namespace thimble
