"""What DataFog finds in texts: for the Python of an environment that has `datafog`, see `bench.policy.redaction_real`.

Reads a JSON list of texts, writes one of {findings: [[start, end, label]], seconds}. Takes a model's name as Presidio's
worker does, and has no use for it: its patterns need none.
"""

import json
import sys
import time

import datafog


def main():
    answers = []
    for text in json.load(sys.stdin):
        begin = time.process_time()
        found = datafog.scan(text)
        seconds = time.process_time() - begin
        entities = getattr(found, "entities", found)
        findings = [[each.start, each.end, each.type] for each in entities]
        answers.append({"findings": findings, "seconds": seconds})
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
