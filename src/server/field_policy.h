#pragma once

#include <string>
#include <vector>

#include "chat/chat_request.h"
#include "json/json_value.h"
#include "server/api.h"

namespace thimble::server {

/// Goes through the top-level fields of a body that ReadApiRequest does not honour. ApiError naming
/// a field that would change the answer; fields that change nothing pass, and those that are not
/// known pass with a note.
void CheckFields(Api api, const JsonValue& body, ChatRequest* chat);

}  // namespace thimble::server
