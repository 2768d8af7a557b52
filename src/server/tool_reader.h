#pragma once

#include <string>

#include "chat/chat_request.h"
#include "json/json_value.h"

namespace thimble::server {

/// Reads the tools that a request offers, in any API's spelling, into the form of OpenAI's chat,
/// which is what the model was trained on: functions. Tools of other types are left out, with a
/// note. ApiError naming `path` where it is no array, or a function has no valid name.
void ReadTools(const JsonValue& tools, const std::string& path, ChatRequest* chat);

/// ApiError unless the names of tools differ, those that the choice names are offered, and every
/// result names its call. Results of calls that the conversation does not hold get a tool's name.
void CheckTools(ChatRequest* chat);

}  // namespace thimble::server
