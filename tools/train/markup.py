"""Kimi K3's chat markup as token ids: every segment is encoded by itself."""

# offsets from the first special slot
BOS, EOS, END_OF_MSG, OPEN, CLOSE, SEP = range(6)

EFFORT = ("`thinking_effort` guides on how much to think in your thinking channel (not including the response "
          "channel), supported values include `low`, `medium`, `high`, and `max`.\n"
          "Now the system is invoked with `thinking_effort={}`.")


class Markup:
    def __init__(self, tokenizer):
        self.tok = tokenizer
        self.id = lambda offset: tokenizer.first_special + offset

    def open(self, tag, **attributes):
        ids = [self.id(OPEN)] + self.tok.encode(tag)
        for key, value in attributes.items():
            value = value.replace("&", "&amp;").replace('"', "&quot;")
            for part in (" " + key, '="', value, '"'):
                ids += self.tok.encode(part)
        return ids + [self.id(SEP)]

    def close(self, tag):
        return [self.id(CLOSE)] + self.tok.encode(tag) + [self.id(SEP)]

    def message(self, body, **attributes):
        """A whole user or system message."""
        return (self.open("message", **attributes) + self.tok.encode(body) + self.close("message")
                + [self.id(END_OF_MSG)])

    def answer(self, reasoning, text):
        """What follows `<|open|>message role="assistant"<|sep|>`; reasoning None = thinking off."""
        ids = []
        if reasoning is not None:
            ids += self.open("think") + self.tok.encode(reasoning) + self.close("think")
        ids += self.open("response") + self.tok.encode(text) + self.close("response")
        return ids + self.close("message") + [self.id(END_OF_MSG)]

    def prompt(self, turns, system=None, effort=None, thinking=True):
        """turns: [(user, reasoning, answer)], the last with answer None -> ids to generate after."""
        ids = self.message(EFFORT.format(effort), role="system", type="thinking-effort") if effort else []
        if system:
            ids += self.message(system, role="system")
        for user, reasoning, text in turns:
            ids += self.message(user, role="user") + self.open("message", role="assistant")
            if text is None:
                return ids + self.open("think" if thinking else "response")
            ids += self.answer(reasoning if thinking else None, text)
        return ids
