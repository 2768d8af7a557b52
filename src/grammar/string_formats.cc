#include "grammar/string_formats.h"

#include <utility>

namespace thimble {
namespace {

#define THIMBLE_DATE                                           \
  "[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|" \
  "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
#define THIMBLE_CLOCK "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?"
#define THIMBLE_ZONE "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define THIMBLE_LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define THIMBLE_OCTET "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define THIMBLE_IPV4 THIMBLE_OCTET "(?:\\." THIMBLE_OCTET "){3}"
#define THIMBLE_URI_CHAR "(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})"
#define THIMBLE_TAIL "(?:\\?(?:" THIMBLE_URI_CHAR "|\\?)*)?(?:#(?:" THIMBLE_URI_CHAR "|\\?)*)?"
#define THIMBLE_H16 "[0-9A-Fa-f]{1,4}"

constexpr std::pair<std::string_view, std::string_view> kFormats[] = {
    {"date", THIMBLE_DATE},
    {"time", THIMBLE_CLOCK THIMBLE_ZONE},
    {"date-time", THIMBLE_DATE "T" THIMBLE_CLOCK THIMBLE_ZONE},
    {"datetime", THIMBLE_DATE "T" THIMBLE_CLOCK THIMBLE_ZONE},
    {"duration",
     "P(?:[0-9]{1,9}W|[0-9]{1,9}Y(?:[0-9]{1,9}M)?(?:[0-9]{1,9}D)?|[0-9]{1,9}M(?:[0-9]{1,9}D)?|"
     "[0-9]{1,9}D(?:T(?:[0-9]{1,9}H)(?:[0-9]{1,9}M)?(?:[0-9]{1,9}S)?)?|"
     "T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S))"},
    {"email", "[A-Za-z0-9_+-]{1,32}(?:\\.[A-Za-z0-9_+-]{1,31})?@" THIMBLE_LABEL
              "(?:\\." THIMBLE_LABEL "){0,2}\\.[A-Za-z]{2,24}"},
    {"idn-email", "[A-Za-z0-9_+-]{1,32}(?:\\.[A-Za-z0-9_+-]{1,31})?@" THIMBLE_LABEL
                  "(?:\\." THIMBLE_LABEL "){0,2}\\.[A-Za-z]{2,24}"},
    {"hostname", THIMBLE_LABEL "(?:\\." THIMBLE_LABEL "){0,2}"},
    {"idn-hostname", THIMBLE_LABEL "(?:\\." THIMBLE_LABEL "){0,2}"},
    {"ipv4", THIMBLE_IPV4},
    {"ipv6", "(?:" THIMBLE_H16 ":){7}" THIMBLE_H16 "|(?:" THIMBLE_H16 ":){1,7}:|(?:" THIMBLE_H16
             ":){1,6}:" THIMBLE_H16 "|(?:" THIMBLE_H16 ":){1,5}(?::" THIMBLE_H16
             "){2}|(?:" THIMBLE_H16 ":){1,4}(?::" THIMBLE_H16 "){3}|(?:" THIMBLE_H16
             ":){1,3}(?::" THIMBLE_H16 "){4}|(?:" THIMBLE_H16 ":){1,2}(?::" THIMBLE_H16
             "){5}|" THIMBLE_H16 ":(?::" THIMBLE_H16 "){6}|:(?::" THIMBLE_H16 "){1,7}|::"},
    {"uuid", "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"},
    {"guid", "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"},
    {"uri", "[A-Za-z][A-Za-z0-9+.-]*:(?://)?[A-Za-z0-9]" THIMBLE_URI_CHAR "*" THIMBLE_TAIL},
    {"url", "[A-Za-z][A-Za-z0-9+.-]*:(?://)?[A-Za-z0-9]" THIMBLE_URI_CHAR "*" THIMBLE_TAIL},
    {"iri", "[A-Za-z][A-Za-z0-9+.-]*:(?://)?[A-Za-z0-9]" THIMBLE_URI_CHAR "*" THIMBLE_TAIL},
    {"uri-reference",
     "[A-Za-z0-9._~/-]"
     "[A-Za-z0-9._~/-]*" THIMBLE_TAIL},
    {"iri-reference",
     "[A-Za-z0-9._~/-]"
     "[A-Za-z0-9._~/-]*" THIMBLE_TAIL},
    {"json-pointer", "(?:/(?:[^~/]|~[01])*)*"},
    {"relative-json-pointer", "(?:0|[1-9][0-9]{0,8})(?:#|(?:/(?:[^~/]|~[01])*)*)"},
    {"byte", "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"},
    {"base64", "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"},
};

#undef THIMBLE_DATE
#undef THIMBLE_CLOCK
#undef THIMBLE_ZONE
#undef THIMBLE_LABEL
#undef THIMBLE_OCTET
#undef THIMBLE_IPV4
#undef THIMBLE_URI_CHAR
#undef THIMBLE_TAIL
#undef THIMBLE_H16

}  // namespace

std::optional<std::string_view> FindFormat(std::string_view name) {
  for (const auto& [known, pattern] : kFormats) {
    if (known == name) return pattern;
  }
  return std::nullopt;
}

}  // namespace thimble
