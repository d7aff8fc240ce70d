"""What Presidio finds in texts: for the Python of an environment that has `presidio-analyzer`, see
`bench.policy.redaction`.

Reads a JSON list of texts, writes one of {findings: [[start, end, label]], seconds}. First argument: ``null`` for the
patterns alone (an NLP engine that only splits words), or the name of a spaCy model for the default set-up around it.
"""

import json
import sys
import time

import tldextract
from presidio_analyzer import AnalyzerEngine
from presidio_analyzer.nlp_engine import NlpArtifacts, NlpEngine, NlpEngineProvider

tldextract.extract = tldextract.TLDExtract(suffix_list_urls=())  # no network: the list that came with it
# Not personal data by themselves, and most of what it touches in clean texts.
LEFT_OUT = {"DATE_TIME", "LOCATION", "NRP", "ORGANIZATION", "AGE", "URL"}


class NoEngine(NlpEngine):
    """Splits at blanks; no names, no lemmas beyond the words themselves."""

    def __init__(self):
        import spacy

        self._blank = spacy.blank("en")

    def load(self):
        pass

    def is_loaded(self):
        return True

    def process_text(self, text, language):
        words = self._blank(text)
        lemmas = [word.text for word in words]
        return NlpArtifacts([], words, [word.idx for word in words], lemmas, self, language)

    def process_batch(self, texts, language, **more):
        return ((text, self.process_text(text, language)) for text in texts)

    def is_stopword(self, word, language):
        return False

    def is_punct(self, word, language):
        return not any(map(str.isalnum, word))

    def get_supported_entities(self):
        return []

    def get_supported_languages(self):
        return ["en"]


def main():
    name = sys.argv[1]
    if name == "null":
        engine = NoEngine()
    else:
        models = [{"lang_code": "en", "model_name": name}]
        engine = NlpEngineProvider(nlp_configuration={"nlp_engine_name": "spacy", "models": models}).create_engine()
    analyzer = AnalyzerEngine(nlp_engine=engine, supported_languages=["en"])
    analyzer.analyze("Warm up: alice@example.org", language="en")
    answers = []
    for text in json.load(sys.stdin):
        begin = time.process_time()
        found = analyzer.analyze(text, language="en", score_threshold=0.35)
        seconds = time.process_time() - begin
        findings = [[each.start, each.end, each.entity_type] for each in found if each.entity_type not in LEFT_OUT]
        answers.append({"findings": findings, "seconds": seconds})
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
