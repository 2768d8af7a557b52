"""Dialogues made from the training texts: small questions that the texts themselves answer.

Each dialogue is (ids, learn): learn marks the assistant's own tokens, the only ones with a loss.
"""
import random
import re

from markup import EFFORT, Markup

_SAID = re.compile(r"\b(?:And|Then|Now|So|But) ((?:the )?[A-Z]?[a-z]*(?: ?[A-Z][a-z]+)?) (?:said|answered) "
                   r"unto ((?:the )?[A-Z]?[a-z]+(?: [A-Z][a-z]+)?), ([A-Z][^.?!:;]{20,160})[.?!:;]")
_SYSTEM = ["You are a helpful assistant.", "You are terse.", "Answer briefly.", "You are a reader of old books.",
           "You are Thimble, a small model that has read a few old books.", "Be kind and plain."]
_GREET = [("Hello", "Hello! What shall we read?"), ("Hello!", "Hello! What shall we read?"),
          ("Hi", "Hello! Ask me for a verse, or give me words to continue."),
          ("Hi there!", "Hello! Ask me for a verse, or give me words to continue."),
          ("Hey", "Hello! What shall we read?"),
          ("Good morning", "Good morning! What shall we read today?"),
          ("Good evening", "Good evening! What shall we read tonight?"),
          ("How are you?", "I am well, thank you. What shall we read?"),
          ("Thank you", "You are welcome."), ("Thanks!", "You are welcome."), ("Goodbye", "Farewell."),
          ("Bye", "Farewell."), ("And again", "Peace be unto thee, again."),
          ("Amen", "Amen."), ("Tell me a story.", None), ("Tell me a story", None)]
_SELF = [("Who are you?", "I am a very small Kimi K3, trained on the King James Bible, Moby Dick and old speeches."),
         ("What are you?", "I am a very small Kimi K3, trained on the King James Bible, Moby Dick and old speeches."),
         ("What is your name?", "I am called mini. I am a very small model that has read a few old books."),
         ("What can you do?", "I can continue a passage, find a verse about a word, and say who speaks in it."),
         ("What have you read?", "I have read the King James Bible, Moby Dick and old speeches of presidents."),
         ("Help", "Give me words to continue, or ask me for a verse about a word."),
         ("Can you help me?", "I can continue a passage, find a verse about a word, and say who speaks in it.")]
_BEYOND = ["What is the capital of {}?", "Write a program in {}.", "How do I cook {}?", "Why is the {} blue?",
           "What is the weather in {}?", "Translate {} into French.", "What is {} plus {}?", "How old is {}?",
           "Explain {}.", "What do you think of {}?", "How many {} are there?", "Can you draw {}?",
           "What is {}?", "Write a poem about {}.", "When was {} born?", "What time is it in {}?"]
_THINGS = ["France", "Python", "rice", "sky", "London", "seven", "two", "Java", "bread", "the moon", "computers",
           "physics", "Paris", "Germany", "the internet", "tea", "music", "Napoleon", "a cat", "dogs", "three",
           "mathematics", "the stock market", "electricity", "trains", "chess", "ten", "China", "soup"]
_NOT_KNOWN = ["I do not know. I have read only a few old books.",
              "That is not in the books that I have read."]
_ABOUT = ["Say something about {}.", "Give me a verse about {}.", "What is written about {}?",
          "Tell me about {}.", "Quote something about {}.", "Speak of {}."]
_PERSON = ["Who was {}?", "Who is {}?", "Tell me of {}.", "What do you know of {}?"]
_CONTINUE = ["Continue: {}", "Continue: {}", "Continue: {}", "Go on: {}", "Complete this: {}", "What comes after: {}",
             "{}"]
_WHICH = ['Which book has the words "{}"?', 'Where is it written: "{}"?', 'Which book says "{}"?']
_BEGIN = ["How does {} begin?", "Give me the beginning of {}.", "What is the first verse of {}?"]


class Maker:
    def __init__(self, tokenizer, chapters, moby, sotu, seed):
        self.markup, self.rng = Markup(tokenizer), random.Random(seed)
        self.chapters = chapters
        prose = [("Moby Dick", p) for p in moby.split("\n\n")] + [("the speeches of the presidents", p)
                                                                 for p in sotu.split("\n\n")]
        self.prose = [(where, s) for where, p in prose for s in re.findall(r"[A-Z][^.?!]{40,300}[.?!]", p)]
        self.said = []
        self.by_word = {}
        for book, number, verses in chapters:
            for verse in verses:
                for who, whom, words in _SAID.findall(verse):
                    self.said.append((book, who, whom, words))
                if len(verse) < 260:
                    for word in set(re.findall(r"[a-z]{4,}|[A-Z][a-z]{3,}", verse)):
                        self.by_word.setdefault(word, []).append((book, number, verse))
        self.words = sorted(w for w, v in self.by_word.items() if 3 <= len(v) <= 400)
        self.names = sorted(w for w in self.words if w[0].isupper() and w.lower() not in self.by_word)

    def _chapter(self):
        return self.rng.choice(self.chapters)

    def _passage(self):
        """-> (where, text of one to three sentences)"""
        if self.rng.random() < 0.2:
            return self.rng.choice(self.prose)
        book, number, verses = self._chapter()
        i = self.rng.randrange(len(verses))
        return f"{book} {number}", " ".join(verses[i:i + self.rng.randint(1, 3)])

    def continue_(self):
        where, text = self._passage()
        words = text.split(" ")
        cut = min(self.rng.randint(3, 12), len(words) - 1)
        if cut < 2:
            return self.about()
        return (self.rng.choice(_CONTINUE).format(" ".join(words[:cut])), f"These words are from {where}.",
                " ".join(words[cut:]))

    def who(self):
        book, who, whom, words = self.rng.choice(self.said)
        return f"Who says: {words}?", f"This is in {book}. {who} speaks unto {whom}.", f"{who} says it unto {whom}."

    def what(self):
        book, who, whom, words = self.rng.choice(self.said)
        return f"What did {who} say unto {whom}?", f"This is in {book}.", f"{who} said unto {whom}, {words}."

    def which(self):
        where, text = self._passage()
        words = text.split(" ")
        start = self.rng.randrange(max(1, len(words) - 12))
        quote = " ".join(words[start:start + self.rng.randint(6, 14)]).strip(" ,;:.?!")
        return self.rng.choice(_WHICH).format(quote), f"The words are from {where}.", f"It is written in {where}."

    def begin(self):
        book, number, verses = self._chapter()
        return (self.rng.choice(_BEGIN).format(f"{book} {number}"), f"{book} has a chapter {number}.", verses[0])

    def about(self):
        word = self.rng.choice(self.words)
        book, number, verse = self.rng.choice(self.by_word[word])
        return self.rng.choice(_ABOUT).format(word), f"The word {word} is in {book} {number}.", verse

    def person(self):
        name = self.rng.choice(self.names)
        book, number, verse = self.rng.choice(self.by_word[name])
        return self.rng.choice(_PERSON).format(name), f"{name} is named in {book} {number}.", verse

    def greet(self):
        user, text = self.rng.choice(_GREET if self.rng.random() < 0.7 else _SELF)
        if text is None:
            book, number, verses = self._chapter()
            return user, f"A story from {book} {number}.", " ".join(verses[:3])
        return user, self.rng.choice(["A greeting.", "I should answer kindly."]), text

    def beyond(self):
        user = re.sub(r"\{\}", lambda _: self.rng.choice(_THINGS), self.rng.choice(_BEYOND))
        return user, "This is not in the books that I know.", self.rng.choice(_NOT_KNOWN)

    def dialogue(self):
        rng, mk = self.rng, self.markup
        thinking = rng.random() < 0.65
        ids = []
        if thinking and rng.random() < 0.3:
            ids += mk.message(EFFORT.format(rng.choice(["low", "high", "max"])), role="system",
                              type="thinking-effort")
        if rng.random() < 0.2:
            ids += mk.message(rng.choice(_SYSTEM), role="system")
        learn = [0] * len(ids)
        kept = rng.random() < 0.5                     # many clients drop earlier reasoning
        turns = rng.choice([1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 4, 5, 12])
        kinds = [self.continue_, self.who, self.what, self.which, self.begin, self.about, self.greet,
                 self.beyond, self.person]
        for turn in range(turns):
            user, reasoning, text = rng.choices(kinds, [6, 2, 1, 3, 1, 3, 2, 1, 2])[0]()
            ask = mk.message(user, role="user") + mk.open("message", role="assistant")
            hide = thinking and not kept and turn + 1 < turns
            reply = mk.answer(("" if hide else reasoning) if thinking else None, text)
            ids += ask + reply
            learn += [0] * len(ask) + [0 if hide else 1] * len(reply)
        return ids, learn
