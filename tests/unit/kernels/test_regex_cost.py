"""Whether a pattern may take 2^n steps, compared with a matcher that counts its ways."""

from __future__ import annotations

import re
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.inputs.examples import examples
from kit.naive.pattern_ways import Tree, ways, written
from millpond.kernels.regex_cost import pattern_cost

EXPONENTIAL = (
    "^(a+)+$", "(a|a)*b", "(a*)*c", "(a?){30}a{30}", r"(\w+\s?)*$", "(?i)(A|a)*x", "(.*)*x", "(?>(a+)+b)c",
    "(ab|a|b)*c", "(x+x+)+y", r"(\p{L}+\p{Alpha}+)*1", "(?=(a+)+b)a", r"^(([\-.]|[_]+)?([a-zA-Z0-9]+))*@",
    "(?:[a-z0-9]|[^0-8])*y", r"(\d{1,20},?){2,}", "((a?|b?)c)*d", r"(\Qab\E|ab)*c", "(?x) ^ ( a + ) + $",
    "(?x: ( a # one\n | a ) * ) b", "(?x)([ a # (\n]+)+b", "(?i)((?x) a | A )*b",
)  # fmt: skip
LINEAR = (
    "", "(a|b)*c", r"(\w+,)*", r"(\w++,?)*$", r"(\d{1,3}\.){3}\d{1,3}", "(a{0,2}b)*", "(?:x|[^x])*y",
    r"^\s*(\S+)\s+(\S+)", r"[\w.+-]+@[\w-]+\.[\w.]+", "a.*b.*c", r"\p{L}+\s\p{N}+", "[a-z&&[^aeiou]]+x",
    "(?<n>ab?)(c)*", "(?x) (a # )+\n b )* c", "(?x)( a | \\  )*b", "(?x: a )( |\t)*b", "((?x) a )( |\t|#)*b",
    "(?x)(?-x:( |\t)*b)", "[(?x)]( |\t)*b", r"\(?x(a| )*b",
    "(foo|bar|food)*;", "[(a+)+]", r"\(a+\)+", "(", "a{2", "*",
    r"^(\d{1,3}\.){3}\d{1,3}(,(\d{1,3}\.){3}\d{1,3}){0,4}$", r"^([A-Z]{1,3}-\d{1,4},){0,8}[A-Z]{1,3}-\d{1,4}$",
)  # fmt: skip


@pytest.mark.parametrize("pattern", EXPONENTIAL)
def test_a_pattern_with_two_ways_for_one_text_is_exponential(pattern: str) -> None:
    assert pattern_cost(pattern).exponential


@pytest.mark.parametrize("pattern", LINEAR)
def test_a_pattern_with_one_way_is_not(pattern: str) -> None:
    assert pattern_cost(pattern).exponential is None


def test_repeated_groups_nest_calls_and_repeated_characters_do_not() -> None:
    frames = [pattern_cost(one).frames for one in ("(a|b)*c", "a*b", "(a|b)*+c", "(ab){2}", "(ab){9,}", "((a)b?)*")]
    assert frames == [9, 0, 0, 0, 7, 12]


def test_a_pattern_that_is_not_analysed_has_a_bound_of_its_calls() -> None:
    for analysed in ("(a|b)*c", "((((a|b)|c)|d)|e)*x", "(((((a)))))*x", r"(\X)*;"):
        assert pattern_cost(f"{analysed}{{2").frames >= pattern_cost(analysed).frames


TOKEN = re.compile(r"\\Q.*?\\E|\\[pP]\{.*?\}|\\.|\{[^}]*\}|\(\?(?:<?[=!]|<\w+>|[:>]|\w+\))|\[\^?\]?|&&|.", re.DOTALL)
PLAIN = [one for one in (*EXPONENTIAL, *LINEAR) if one not in ("(", "a{2", "*") and not set(one) & set("x #")]


@given(st.data(), st.sampled_from(PLAIN))
def test_blanks_and_comments_that_java_ignores_change_nothing(data: st.DataObject, pattern: str) -> None:
    gaps = st.sampled_from(["", " ", "\n\t", "# (a|[b\n"])
    spaced = "".join(token + data.draw(gaps) for token in TOKEN.findall(pattern))
    assert pattern_cost(f"(?x){spaced}") == pattern_cost(f"(?){pattern}")


def test_a_pattern_of_very_many_parts_is_refused_in_time() -> None:
    assert pattern_cost("(" * 3000 + ")" * 3000).exponential
    assert pattern_cost("(" + "|".join(f"word{n}" for n in range(150)) + ")*;").exponential is None


TREES: st.SearchStrategy[Tree] = st.recursive(
    st.sampled_from("ab"),
    lambda tree: st.one_of(
        st.tuples(st.sampled_from("|."), tree, tree), st.tuples(st.sampled_from("*+?"), tree)
    ),
    max_leaves=3,
)  # fmt: skip


@given(TREES)
@settings(max_examples=examples(15))
def test_it_says_what_counting_shows(tree: Tree) -> None:
    texts = ["".join(text) for size in range(3) for text in product("ab", repeat=size)]
    grows = any(
        ways(tree, first + middle * 16 + last) > 100 * max(1, ways(tree, first + middle * 8 + last))
        for first, middle, last in product(texts[:3], texts[1:], texts[:3])
    )
    assert grows == (pattern_cost(written(tree)).exponential is not None)
