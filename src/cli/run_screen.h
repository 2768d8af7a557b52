#pragma once

#include <cstddef>
#include <exception>
#include <string>
#include <string_view>

#include "engine/generation.h"
#include "terminal/live_status.h"
#include "terminal/output.h"

namespace thimble::cli {

struct RunScreenOptions {
  std::string echo;            // the prompt, shown at a terminal before the text; empty: none
  bool out_ids = false;        // show ids instead of text
  bool verbose = false;        // show what the engine does
  bool keeps_session = false;  // a step that has begun is finished, so that it can be saved
};

/// Shows a generation: text or ids on standard output, progress on standard error. Ends it when the
/// user interrupts, or when standard output takes no more.
class RunScreen : public GenerationListener {
 public:
  RunScreen(RunScreenOptions options, const Engine& engine, size_t prompt_tokens);

  bool OnLayer(size_t layer) override;
  bool Continue() override;
  bool OnPause() override;
  void OnProgress(size_t done, size_t total) override;
  void OnToken(TokenId id) override;
  void OnText(std::string_view text) override;
  /// Leaves the cursor at the start of a line.
  void End();

  /// Why standard output took no more; null while it does.
  const std::exception_ptr& failure() const { return failure_; }

 private:
  void Show(std::string_view text);
  void ShowProgress();
  bool FinishesStep();

  const RunScreenOptions options_;
  const Engine& engine_;
  const size_t prompt_tokens_;
  size_t prompt_done_ = 0;
  size_t layer_ = 0;
  size_t num_tokens_ = 0;  // sampled so far
  ProgressLine progress_;
  LiveStatus status_;
  std::exception_ptr failure_;
  bool told_ = false;
  bool any_ = false;
  bool ends_line_ = false;
};

}  // namespace thimble::cli
