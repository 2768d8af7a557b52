#!/usr/bin/env python3
"""The requests of lm-evaluation-harness (`--model local-completions`), and its way of reading the
answers, against `thimble serve` with the embedded model.

usage: lm_eval.py THIMBLE

The harness itself is not needed: _create_payload, parse_logprobs and parse_generations are written out
as in its lm_eval/models/openai_completions.py and api_models.py. The probabilities of a text must add
up to what `thimble eval` measures.
"""

import json
import math
import re
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from operator import itemgetter

THIMBLE = sys.argv[1]
OPTIONS = ["--memory", "512M", "-t", "1"]
SERVER = subprocess.Popen([THIMBLE, "serve", "--port", "0", *OPTIONS], stderr=subprocess.PIPE,
                          text=True)
BASE = re.search(r"http://\S+?:\d+", SERVER.stderr.readline())[0]
TEXT = ("In the beginning God created the heaven and the earth. And the earth was without form, and "
        "void; and darkness was upon the face of the deep. \u00c9t\u00e9!")


def post(path, body):
    request = urllib.request.Request(BASE + path, json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{error.code}: {error.read().decode()}") from error


def ids_of(text):
    return post("/tokenize", {"content": text})["tokens"]


def create_payload(messages, generate, gen_kwargs=None, seed=1234):
    if generate:
        gen_kwargs = dict(gen_kwargs)
        return {"prompt": messages, "model": "mini", "max_tokens": gen_kwargs.pop("max_gen_toks", 256),
                "temperature": gen_kwargs.pop("temperature", 0), "stop": gen_kwargs.pop("until"),
                "seed": seed, **gen_kwargs}
    return {"model": "mini", "prompt": messages, "temperature": 0, "max_tokens": 1, "logprobs": 1,
            "seed": seed, "echo": True}


def parse_logprobs(output, ctxlens):
    results = []
    for choice, ctxlen in zip(sorted(output["choices"], key=itemgetter("index")), ctxlens):
        assert ctxlen > 0
        logprobs = choice["logprobs"]["token_logprobs"][ctxlen:-1]
        top_logprobs = choice["logprobs"]["top_logprobs"][ctxlen:-1]
        greedy = all(own == max(top.values()) for own, top in zip(logprobs, top_logprobs))
        results.append((sum(logprobs), greedy))
    return results


def parse_generations(output):
    texts = [None] * len(output["choices"])
    for choice in output["choices"]:
        texts[choice["index"]] = choice["text"]
    return texts


def check_sum():
    ids = ids_of(TEXT)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
        file.write(TEXT)
        file.flush()
        result = json.loads(subprocess.run([THIMBLE, "eval", "-f", file.name, "--json", *OPTIONS],
                                           capture_output=True, check=True, text=True).stdout)
    assert result["tokens"] == len(ids) - 1
    expected = -result["bits_per_byte"] * result["bytes"] * math.log(2)
    for prompt in (ids, TEXT):
        [(total, _)] = parse_logprobs(post("/v1/completions", create_payload([prompt], False)), [1])
        assert math.isclose(total, expected, rel_tol=1e-12), (total, expected)
    print(f"ok    a text's probabilities: {total:.6f} nats, eval {expected:.6f}")


def check_batch():
    context = ids_of("In the beginning")
    endings = [" God", " of the king", " was without form and void"]
    batch = [context + ids_of(ending) for ending in endings]
    together = parse_logprobs(post("/v1/completions", create_payload(batch, False)),
                              [len(context)] * len(batch))
    alone = [parse_logprobs(post("/v1/completions", create_payload([ids], False)),
                            [len(context)])[0] for ids in batch]
    assert together == alone, (together, alone)
    # What the model says by itself is greedy.
    said = parse_generations(post("/v1/completions", create_payload(
        [context], True, {"until": ["\n\n\n"], "max_gen_toks": 8})))[0]
    output = post("/v1/completions", create_payload([context + ids_of(said)], False))
    assert len(output["choices"][0]["logprobs"]["tokens"]) == len(context + ids_of(said)) + 1
    [(_, greedy)] = parse_logprobs(output, [len(context)])
    assert greedy, said
    print(f"ok    a batch of {len(batch)}: {[round(total, 3) for total, _ in together]}")


def check_prompt_alone():
    ids = ids_of("In the beginning")
    output = post("/v1/completions", {"prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 2})
    [choice] = output["choices"]
    assert choice["text"] == "In the beginning" and choice["finish_reason"] == "length"
    logprobs = choice["logprobs"]
    assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
    assert "".join(logprobs["tokens"]) == choice["text"]
    assert logprobs["text_offset"][0] == 0 and len(logprobs["text_offset"]) == len(ids)
    assert all(2 <= len(top) <= 3 for top in logprobs["top_logprobs"][1:])
    assert output["usage"]["completion_tokens"] == 0
    print("ok    a prompt alone")


def check_generation():
    prompts = [ids_of("And the king"), ids_of("Blessed be"), ids_of("In the")]
    payload = create_payload(prompts, True, {"until": ["\n", "."], "max_gen_toks": 24,
                                             "do_sample": False})
    texts = parse_generations(post("/v1/completions", payload))
    again = [parse_generations(post("/v1/completions", dict(payload, prompt=[prompt])))[0]
             for prompt in prompts]
    assert texts == again and not any("." in text for text in texts), (texts, again)
    print(f"ok    generation: {texts}")


try:
    check_sum()
    check_batch()
    check_prompt_alone()
    check_generation()
finally:
    SERVER.send_signal(signal.SIGTERM)
    status = SERVER.wait(60)
assert status == 0, f"the server ended with {status}"
