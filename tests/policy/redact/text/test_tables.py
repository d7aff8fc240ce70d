import pytest

from policy.redact.text.tables import columns_of


def told(text: str) -> list[tuple[str, list[str]]]:
    return [
        (text[column.start : column.end].strip(), [text[start:end].strip() for start, end in column.cells])
        for column in columns_of(text)
    ]


@pytest.mark.parametrize("text", [
    "name,pesel\nJan,1\nEwa,2\n",
    "name;pesel\nJan;1\nEwa;2",
    "name\tpesel\nJan\t1\nEwa\t2",
    "name    pesel\nJan     1\nEwa     2\n",
    "INSERT INTO t (name, pesel) VALUES (Jan, 1), (Ewa, 2);",
    "COPY t (name, pesel) FROM stdin;\nJan\t1\nEwa\t2\n\\.\n",
    "<tr><th>name</th><th>pesel</th></tr>\n<tr><td>Jan</td><td>1</td></tr><tr><td>Ewa</td><td>2</td></tr>",
])  # fmt: skip
def test_a_heading_says_what_stands_below_it(text):
    assert [column for column in told(text) if column[0] in ("name", "pesel")] == [
        ("name", ["Jan", "Ewa"]),
        ("pesel", ["1", "2"]),
    ]


def test_a_sign_between_quotes_separates_nothing():
    assert told('name,pesel\n"Nowak, Jan",1\n')[1] == ("pesel", ["1"])
    assert told("insert into t (name, pesel) values ('Nowak, Jan', '1');")[1] == ("pesel", ["'1'"])


def test_a_quote_that_never_closes_hides_no_column():
    assert told('"note;pesel\nx;1\n')[1] == ("pesel", ["1"])


def test_a_heading_may_lack_the_column_of_row_names():
    assert "1" in dict(told("name;pesel\n17;Jan;1\n"))["pesel"]


def test_a_line_of_greeting_is_no_heading():
    assert ("pesel", ["1"]) in told("Hello, please see\nname,pesel\nJan,1\n")


def test_members_of_an_object_are_no_table():
    assert told('{\n  "name": "Jan",\n  "pesel": "44051401359"\n}') == []


@pytest.mark.parametrize(
    "text", ["", "\n\n", "a\nb\n", "1234,5678\n1,2\n", "(a) VALUES", "(a, b) VALUES ('", "<tr>", "a;b\n\n1;2"]
)
def test_what_is_no_table_has_no_columns(text):
    assert told(text) == []


def test_values_on_the_line_below_and_padded_last_columns_count():
    text = "INSERT INTO t (name, pesel) VALUES\n('Jan', '1'),\n('Ewa', '2');"
    assert ("pesel", ["'1'", "'2'"]) in told(text)
    assert ("pesel", ["1", "2"]) in told("name    pesel\nJan     1     \nEwa     2     \n")


@pytest.mark.parametrize(
    "text", ['f(\n    cpr="1",\n    order_no="2",\n)\n', "<tr><th>a</th><td>1</td></tr><tr><th>b</th><td>2</td></tr>"]
)
def test_arguments_and_rows_with_headings_of_their_own_are_no_table(text):
    assert told(text) == []
