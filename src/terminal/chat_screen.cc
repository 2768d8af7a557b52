#include "terminal/chat_screen.h"

#include <unistd.h>

#include <algorithm>

#include "terminal/interrupt.h"

namespace thimble {

std::string PlainText(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    // C1 controls are C2 80 to C2 9F in UTF-8.
    const bool is_c1 =
        byte == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0;
    const bool is_control = (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f;
    if (is_c1) ++i;
    if (!is_c1 && !is_control) plain += text[i];
  }
  return plain;
}

ChatScreen::ChatScreen(const Engine& engine)
    : engine_(engine), terminal_(::isatty(STDOUT_FILENO) == 1) {}

void ChatScreen::BeginAnswer() {
  prompt_done_ = 0;
  prompt_total_ = 0;
  thought_tokens_ = 0;
  in_thought_ = false;
  any_ = false;
  ends_line_ = true;
  told_ = false;
  progress_ = ProgressLine();
  ForgetInterrupts();
}

void ChatScreen::EndAnswer() {
  progress_.Clear();
  EndThought();
  if (!ends_line_) Show("\n");
  ForgetInterrupts();
}

// Keeps the failure instead of throwing it through the engine: the answer can still be saved.
void ChatScreen::Show(std::string_view text) {
  if (failure_) return;
  try {
    Print(text);
  } catch (const StandardOutputError&) {
    failure_ = std::current_exception();
  }
}

bool ChatScreen::OnLayer(size_t layer) {
  if (prompt_done_ < prompt_total_) {
    const size_t chunk = std::min(engine_.plan().prefill_chunk, prompt_total_ - prompt_done_);
    progress_.Show("reading", prompt_done_ + chunk * layer / engine_.config().num_layers(),
                   prompt_total_);
  }
  return Continue();
}

bool ChatScreen::Continue() {
  const int interrupts = NumInterrupts();
  if (interrupts > 0 && !told_) {
    progress_.Clear();
    if (terminal_) Note("\n(ends after this step; Ctrl-C again ends it at once)\n");
    told_ = true;
  }
  return interrupts < 2;
}

bool ChatScreen::OnPause() { return NumInterrupts() == 0 && !failure_; }

void ChatScreen::OnProgress(size_t done, size_t total) {
  prompt_done_ = done;
  prompt_total_ = total;
  if (done == total) progress_.Clear();
}

void ChatScreen::OnToken(ReplyChannel channel) {
  if (channel != ReplyChannel::kReasoning) return;
  ++thought_tokens_;
  if (folded_ && terminal_) Note("\r\033[K(thinking: {} tokens)", thought_tokens_);
}

void ChatScreen::OnReasoning(std::string_view text) {
  if (!terminal_ || folded_) return;
  if (!in_thought_) Show("\033[2m");
  in_thought_ = true;
  const std::string plain = PlainText(text);
  Show(plain);
  if (!plain.empty()) ends_line_ = plain.back() == '\n';
}

void ChatScreen::EndThought() {
  if (folded_ && terminal_ && thought_tokens_ > 0) Note("\r\033[K");
  if (!in_thought_) return;
  Show(ends_line_ ? "\033[0m" : "\033[0m\n");
  in_thought_ = false;
  ends_line_ = true;
}

void ChatScreen::OnContent(std::string_view text) {
  if (!any_) EndThought();
  any_ = true;
  const std::string plain = terminal_ ? PlainText(text) : std::string(text);
  Show(plain);
  if (!plain.empty()) ends_line_ = plain.back() == '\n';
}

}  // namespace thimble
