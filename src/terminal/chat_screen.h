#pragma once

#include <string>
#include <string_view>

#include "dialogue/conversation.h"
#include "terminal/output.h"

namespace thimble {

/// Shows answers as they are made: the answer on standard output, at a terminal with the thought
/// before it, dimmed; progress and notes on standard error. Ctrl-C stops an answer after the step
/// that it is in, a second one in it.
class ChatScreen : public ConversationListener {
 public:
  explicit ChatScreen(const Engine& engine);

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
};

/// Text that cannot steer a terminal: without control characters but newline and tab.
std::string PlainText(std::string_view text);

}  // namespace thimble
