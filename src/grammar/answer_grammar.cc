#include "grammar/answer_grammar.h"

#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "grammar/pattern.h"
#include "grammar/schema_compiler.h"

namespace thimble {
namespace {

constexpr uint32_t kMaxCalls = 128;  // in one answer
constexpr size_t kPatternWork = 10'000'000;

struct Tool {
  std::string name;
  std::string field;  // of its parameters
  JsonValue parameters;
  bool bound = false;
};

const JsonValue& EmptySchema() {
  static const JsonValue schema = [] {
    JsonValue object;
    object.kind = JsonValue::Kind::kObject;
    return object;
  }();
  return schema;
}

void AddTools(const JsonValue& tools, const std::string& field, const ChatRequest& request,
              std::vector<Tool>* all) {
  for (size_t i = 0; i < tools.items.size(); ++i) {
    const JsonValue* function = tools.items[i].FindSet("function");
    const JsonValue* name = function == nullptr ? nullptr : function->FindSet("name");
    if (name == nullptr || !name->is_string()) continue;
    const auto& callable = request.callable_tools;
    if (!callable.empty() && std::ranges::find(callable, name->text) == callable.end()) continue;
    const auto is_strict = [](const JsonValue& place) {
      const JsonValue* strict = place.FindSet("strict");
      return strict != nullptr && strict->is_boolean() && strict->boolean;
    };
    const JsonValue* parameters = function->FindSet("parameters");
    all->push_back({name->text, fmt::format("{}[{}].function.parameters", field, i),
                    parameters == nullptr ? EmptySchema() : *parameters,
                    request.tool_choice == ToolChoice::kRequired || is_strict(*function) ||
                        is_strict(tools.items[i])});
  }
}

std::vector<Tool> CallableTools(const ChatRequest& request) {
  std::vector<Tool> tools;
  if (request.tool_choice == ToolChoice::kNone) return tools;
  if (request.tools) AddTools(*request.tools, "tools", request, &tools);
  for (size_t i = 0; i < request.messages.size(); ++i) {
    if (!request.messages[i].tools) continue;
    AddTools(*request.messages[i].tools, fmt::format("messages[{}].tools", i), request, &tools);
  }
  return tools;
}

// Makes the nodes of an answer.
class AnswerBuilder {
 public:
  AnswerBuilder(const Tokenizer& tokenizer, const TextForm& form)
      : tokenizer_(tokenizer), form_(form) {}

  uint32_t Literal(std::string_view text) { return grammar_.Literal(text); }
  uint32_t Special(std::string_view name) {
    const auto id = tokenizer_.FindSpecial(name);
    THIMBLE_CHECK(id.has_value());
    return Special(*id);
  }
  uint32_t Special(TokenId id) {
    return grammar_.Special(static_cast<uint32_t>(id - tokenizer_.num_ranks()));
  }
  uint32_t Sequence(std::vector<uint32_t> nodes) { return grammar_.Sequence(std::move(nodes)); }
  uint32_t Choice(std::vector<uint32_t> nodes) { return grammar_.Choice(std::move(nodes)); }
  uint32_t AnyBytes() { return grammar_.Text(grammar_.AddAutomaton(ByteAutomaton::AnyBytes())); }
  uint32_t Number(uint32_t least) {
    NumberBounds bounds;
    bounds.integer = true;
    bounds.min = {*ParseDecimal(fmt::format("{}", least)), false};
    bounds.max = {*ParseDecimal("99999"), false};
    return grammar_.Text(grammar_.AddAutomaton(*NumberAutomaton(bounds)));
  }
  uint32_t Calls(uint32_t call, bool parallel) {
    Grammar::Items calls;
    calls.rest = {call, call, false, {}};
    calls.min = 1;
    calls.max = parallel ? kMaxCalls : 1;
    return grammar_.AddItems(std::move(calls));
  }

  // The text in its form.
  uint32_t Text() {
    switch (form_.kind) {
      case TextForm::Kind::kFree:
        return AnyBytes();
      case TextForm::Kind::kJsonObject:
        return Schema(AnyObject(), form_.field);
      case TextForm::Kind::kSchema:
        return Schema(form_.schema, form_.field);
      case TextForm::Kind::kChoice:
        if (form_.choices.empty()) Refuse(form_.field, "expected at least one text");
        return grammar_.Text(grammar_.AddAutomaton(ByteAutomaton::OneOf(form_.choices)));
      case TextForm::Kind::kPattern:
        return Pattern();
    }
    return AnyBytes();
  }

  // The arguments of a tool as one JSON object, or one by one where there is a speller.
  uint32_t Arguments(const Tool& tool, const ArgumentSpeller& speller) {
    if (tool.bound) {
      try {
        // A grammar of its own first: what is too large must leave nothing behind.
        Grammar trial;
        SchemaCompiler compiler(tool.parameters, tool.field, JsonSpacing::kOptional, &trial);
        const uint32_t root = compiler.Json();
        if (!trial.Finish(root)) RefuseEmpty(tool.field, compiler.contradiction());
        return ObjectOf(tool.parameters, tool.field, speller);
      } catch (const Grammar::TooLarge&) {
        unbound_.push_back(fmt::format("{} (too large)", tool.field));
      }
    }
    return ObjectOf(EmptySchema(), tool.field, speller);
  }

  AnswerGrammar Finish(uint32_t root) {
    if (!grammar_.Finish(root)) RefuseEmpty(form_.field, contradiction_);
    return {std::move(grammar_), std::move(unbound_)};
  }

 private:
  [[noreturn]] static void Refuse(const std::string& field, const std::string& what) {
    throw Error(ErrorCode::kUsage, fmt::format("{}: {}", field, what));
  }
  [[noreturn]] static void RefuseEmpty(const std::string& field, const std::string& reason) {
    throw Error(ErrorCode::kUsage,
                reason.empty() ? fmt::format("{}: nothing can fit the schema", field) : reason);
  }
  static const JsonValue& AnyObject() {
    static const JsonValue schema = ParseJson(R"({"type":"object"})");
    return schema;
  }

  uint32_t Schema(const JsonValue& schema, const std::string& field) {
    SchemaCompiler compiler(schema, field, JsonSpacing::kNone, &grammar_);
    const uint32_t node = compiler.Json();
    Note(compiler);
    return node;
  }
  uint32_t ObjectOf(const JsonValue& schema, const std::string& field,
                    const ArgumentSpeller& speller) {
    SchemaCompiler compiler(schema, field, JsonSpacing::kOptional, &grammar_);
    const uint32_t node = speller ? compiler.Arguments(speller) : compiler.JsonObject();
    Note(compiler);
    return node;
  }
  void Note(const SchemaCompiler& compiler) {
    unbound_.insert(unbound_.end(), compiler.unbound().begin(), compiler.unbound().end());
    if (contradiction_.empty()) contradiction_ = compiler.contradiction();
  }
  uint32_t Pattern() {
    size_t work = kPatternWork;
    try {
      ByteAutomaton automaton =
          ByteAutomaton::Of(CompilePattern(form_.pattern, true, &work), TextSpelling::kRaw);
      if (automaton.empty()) Refuse(form_.field, "no text matches it");
      return grammar_.Text(grammar_.AddAutomaton(std::move(automaton)));
    } catch (const PatternError& error) {
      Refuse(form_.field, error.what());
    }
  }

  const Tokenizer& tokenizer_;
  const TextForm& form_;
  Grammar grammar_;
  std::vector<std::string> unbound_;
  std::string contradiction_;
};

std::string EscapedAttribute(std::string_view value) {
  std::string escaped;
  for (const char c : value) {
    if (c == '&') {
      escaped += "&amp;";
    } else if (c == '"') {
      escaped += "&quot;";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

// The markup of chat/kimi_k3_prompt.cc, as the model writes it.
class KimiK3Answer {
 public:
  KimiK3Answer(AnswerBuilder& builder, const ChatRequest& request, const TextForm& form)
      : b_(builder), request_(request), form_(form) {}

  uint32_t Build(const std::vector<Tool>& tools) {
    const uint32_t end = b_.Sequence({Close("message"), b_.Special("<|end_of_msg|>")});
    uint32_t answer = 0;
    if (tools.empty()) {
      answer = b_.Sequence({b_.Text(), Close("response"), end});
    } else {
      const uint32_t calls = b_.Sequence({Open("tools"), Calls(tools), Close("tools"), end});
      const uint32_t only_calls = b_.Sequence({Close("response"), calls});
      if (request_.tool_choice == ToolChoice::kRequired) {
        answer = only_calls;
      } else if (form_.kind == TextForm::Kind::kFree) {
        answer = b_.Sequence({b_.Text(), Close("response"), b_.Choice({end, calls})});
      } else {
        answer = b_.Choice({b_.Sequence({b_.Text(), Close("response"), end}), only_calls});
      }
    }
    if (!AnswersInThought(ChatMarkup::kKimiK3, request_)) return answer;
    return b_.Sequence({b_.AnyBytes(), Close("think"), Open("response"), answer});
  }

 private:
  uint32_t Element(std::string_view marker, std::string_view tag) {
    return b_.Sequence({b_.Special(marker), b_.Literal(tag), b_.Special("<|sep|>")});
  }
  uint32_t Open(std::string_view tag) { return Element("<|open|>", tag); }
  uint32_t Close(std::string_view tag) { return Element("<|close|>", tag); }

  uint32_t Calls(const std::vector<Tool>& tools) {
    const ArgumentSpeller speller = [this](uint32_t key, std::string_view type, uint32_t value) {
      return b_.Sequence({b_.Special("<|open|>"), b_.Literal("argument key=\""), key,
                          b_.Literal(fmt::format("\" type=\"{}\"", type)), b_.Special("<|sep|>"),
                          value, Close("argument")});
    };
    std::vector<uint32_t> calls;
    for (const Tool& tool : tools) {
      const std::string head =
          fmt::format("call tool=\"{}\" index=\"", EscapedAttribute(tool.name));
      calls.push_back(
          b_.Sequence({b_.Special("<|open|>"), b_.Literal(head), b_.Number(1), b_.Literal("\""),
                       b_.Special("<|sep|>"), b_.Arguments(tool, speller), Close("call")}));
    }
    return b_.Calls(b_.Choice(std::move(calls)), request_.parallel_tool_calls);
  }

  AnswerBuilder& b_;
  const ChatRequest& request_;
  const TextForm& form_;
};

// The markup of chat/kimi_linear_prompt.cc, as the model writes it.
class KimiLinearAnswer {
 public:
  KimiLinearAnswer(AnswerBuilder& builder, const ChatRequest& request, const TextForm& form)
      : b_(builder), request_(request), form_(form) {}

  uint32_t Build(const std::vector<Tool>& tools) {
    const uint32_t end = b_.Special("<|im_end|>");
    if (tools.empty()) return b_.Sequence({b_.Text(), end});
    const uint32_t calls = b_.Sequence({b_.Special("<|tool_calls_section_begin|>"), Calls(tools),
                                        b_.Special("<|tool_calls_section_end|>"), end});
    if (request_.tool_choice == ToolChoice::kRequired) return calls;
    if (form_.kind == TextForm::Kind::kFree)
      return b_.Sequence({b_.Text(), b_.Choice({end, calls})});
    return b_.Choice({b_.Sequence({b_.Text(), end}), calls});
  }

 private:
  uint32_t Calls(const std::vector<Tool>& tools) {
    std::vector<uint32_t> calls;
    calls.reserve(tools.size());
    for (const Tool& tool : tools) {
      calls.push_back(b_.Sequence({b_.Special("<|tool_call_begin|>"),
                                   b_.Literal(fmt::format("functions.{}:", tool.name)),
                                   b_.Number(0), b_.Special("<|tool_call_argument_begin|>"),
                                   b_.Arguments(tool, {}), b_.Special("<|tool_call_end|>")}));
    }
    return b_.Calls(b_.Choice(std::move(calls)), request_.parallel_tool_calls);
  }

  AnswerBuilder& b_;
  const ChatRequest& request_;
  const TextForm& form_;
};

bool BindsCalls(const ChatRequest& request, const std::vector<Tool>& tools) {
  if (tools.empty()) return false;
  return request.tool_choice == ToolChoice::kRequired || !request.parallel_tool_calls ||
         !request.callable_tools.empty() || std::ranges::any_of(tools, &Tool::bound);
}

// Turns a grammar's own limit into an error that names the field.
template <typename Build>
AnswerGrammar Bounded(const std::string& field, const Build& build) {
  try {
    return build();
  } catch (const Grammar::TooLarge&) {
    throw Error(ErrorCode::kUsage, fmt::format("{}: it is too large to be bound", field));
  }
}

}  // namespace

TextForm FormOf(const ChatRequest& request) {
  TextForm form;
  form.field = "response_format";
  if (request.response_format == ResponseFormat::kJsonObject) {
    form.kind = TextForm::Kind::kJsonObject;
  } else if (request.response_format == ResponseFormat::kJsonSchema) {
    form.kind = TextForm::Kind::kSchema;
    form.field = "response_format.json_schema";
    form.schema = request.schema;
  }
  return form;
}

AnswerGrammar BindText(const TextForm& form, const Tokenizer& tokenizer,
                       std::span<const TokenId> ends) {
  return Bounded(form.field, [&] {
    AnswerBuilder builder(tokenizer, form);
    std::vector<uint32_t> nodes;
    for (const TokenId id : ends) {
      if (tokenizer.IsReserved(id)) nodes.push_back(builder.Special(id));
    }
    const uint32_t text = builder.Text();
    return builder.Finish(builder.Sequence({text, builder.Choice(std::move(nodes))}));
  });
}

std::optional<AnswerGrammar> BindAnswer(const ChatRequest& request, const TextForm& form,
                                        ChatMarkup markup, const Tokenizer& tokenizer) {
  const std::vector<Tool> tools = CallableTools(request);
  if (form.kind == TextForm::Kind::kFree && !BindsCalls(request, tools)) return std::nullopt;
  return Bounded(form.field, [&] {
    AnswerBuilder builder(tokenizer, form);
    const uint32_t root = markup == ChatMarkup::kKimiK3
                              ? KimiK3Answer(builder, request, form).Build(tools)
                              : KimiLinearAnswer(builder, request, form).Build(tools);
    return builder.Finish(root);
  });
}

}  // namespace thimble
