#include "cli/run_screen.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "terminal/interrupt.h"

namespace thimble::cli {

RunScreen::RunScreen(RunScreenOptions options, const Engine& engine, size_t prompt_tokens)
    : options_(std::move(options)),
      engine_(engine),
      prompt_tokens_(prompt_tokens),
      status_(engine, options_.verbose) {}

bool RunScreen::OnLayer(size_t layer) {
  layer_ = layer;
  return Continue();
}

bool RunScreen::Continue() {
  ShowProgress();
  return FinishesStep() || (!Interrupted() && !failure_);
}

bool RunScreen::OnPause() { return !Interrupted() && !failure_; }

void RunScreen::OnProgress(size_t done, size_t total) {
  prompt_done_ = done;
  if (done == total) progress_.Clear();
}

void RunScreen::OnToken(TokenId id) {
  if (num_tokens_++ == 0) status_.BeginText();
  if (!options_.out_ids) return;
  Show(any_ ? fmt::format(",{}", id) : fmt::format("{}", id));
  any_ = true;
}

void RunScreen::OnText(std::string_view text) {
  if (options_.out_ids) return;
  // Not before: the lines of progress would have erased it. Pipes get only what is new.
  const bool echoes = !any_ && !options_.echo.empty() && ::isatty(STDOUT_FILENO) == 1 &&
                      ::isatty(STDERR_FILENO) == 1;
  if (echoes) Note("\033[1m{}\033[0m", options_.echo);
  Show(text);
  ends_line_ = text.back() == '\n';
  any_ = true;
}

void RunScreen::End() {
  progress_.Clear();
  status_.Clear();
  if (any_ && !ends_line_) Show("\n");
}

// Keeps the failure instead of throwing it through the engine: what was computed can be saved.
void RunScreen::Show(std::string_view text) {
  if (failure_) return;
  try {
    Print(text);
  } catch (const StandardOutputError&) {
    failure_ = std::current_exception();
  }
}

// A chunk may take minutes, and a layer many seconds: each layer moves the progress by its share
// of the chunk, and within it the time that is left is brought up to date.
void RunScreen::ShowProgress() {
  if (prompt_done_ >= prompt_tokens_) return status_.Show("writing", num_tokens_, layer_);
  const size_t chunk = std::min(engine_.plan().prefill_chunk, prompt_tokens_ - prompt_done_);
  const size_t done = prompt_done_ + chunk * layer_ / engine_.config().num_layers();
  status_.Show("reading the prompt", done, layer_);
  if (!status_.active()) progress_.Show("reading the prompt", done, prompt_tokens_);
}

// A session ends between two sweeps, where it is whole.
bool RunScreen::FinishesStep() {
  if (!options_.keeps_session) return false;
  if (Interrupted() && !told_) {
    Note("\nfinishing this step to save the session; Ctrl-C again ends at once\n");
    told_ = true;
  }
  return true;
}

}  // namespace thimble::cli
