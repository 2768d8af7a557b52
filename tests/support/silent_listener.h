#pragma once

#include <string>
#include <vector>

#include "engine/generation.h"

namespace thimble {

/// Keeps what it is told, and stops the generation where asked to.
class SilentListener : public GenerationListener {
 public:
  bool OnLayer(size_t) override { return ids.size() < stop_after; }
  void OnProgress(size_t done, size_t) override { progress.push_back(done); }
  void OnToken(TokenId id) override { ids.push_back(id); }
  void OnText(std::string_view piece) override {
    pieces.emplace_back(piece);
    text += piece;
  }

  size_t stop_after = SIZE_MAX;  // tokens
  std::vector<size_t> progress;
  std::vector<TokenId> ids;
  std::vector<std::string> pieces;
  std::string text;
};

}  // namespace thimble
