#pragma once

#include <exception>
#include <string>
#include <string_view>

#include "dialogue/conversation.h"
#include "terminal/output.h"

namespace thimble {

/// Shows answers while they are generated: the answer on standard output, at a terminal with the
/// thought before it, dimmed; progress and notes on standard error. Ctrl-C ends an answer after the
/// present step, a second one within it. An answer also ends when standard output takes no more.
class ChatScreen : public ConversationListener {
 public:
  explicit ChatScreen(const Engine& engine);

  /// Why standard output took no more; null while it does.
  const std::exception_ptr& failure() const { return failure_; }

  /// Whether thoughts are only counted, not shown.
  bool folded() const { return folded_; }
  void set_folded(bool folded) { folded_ = folded; }

  void BeginAnswer();
  /// Leaves the cursor at the start of a line.
  void EndAnswer();

  bool OnLayer(size_t layer) override;
  bool Continue() override;
  bool OnPause() override;
  void OnProgress(size_t done, size_t total) override;
  void OnToken(ReplyChannel channel) override;
  void OnReasoning(std::string_view text) override;
  void OnContent(std::string_view text) override;

 private:
  void EndThought();
  void Show(std::string_view text);

  const Engine& engine_;
  const bool terminal_;
  bool folded_ = false;
  ProgressLine progress_;
  size_t prompt_done_ = 0;
  size_t prompt_total_ = 0;
  size_t thought_tokens_ = 0;
  bool in_thought_ = false;  // and some of it is on the screen
  bool any_ = false;
  bool ends_line_ = true;
  bool told_ = false;
  std::exception_ptr failure_;
};

/// Text that cannot steer a terminal: without control characters but newline and tab.
std::string PlainText(std::string_view text);

}  // namespace thimble
