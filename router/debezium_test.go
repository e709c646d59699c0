package router

import (
	"encoding/base64"
	"math/big"
	"strconv"
	"strings"
	"testing"

	"github.com/postrider/postrider/event"
	"pgregory.net/rapid"
)

// convert writes one value of a type as a header (or as JSON).
func convert(t testing.TB, typ, text string, s style) (string, string) {
	t.Helper()
	c := columnOf("c", typ)
	var conv converter
	out, problem := conv.append(nil, newTypeTable().lookup(c.TypeOID, c.TypeMod), []byte(text), s)
	return string(out), problem
}

// format: debezium, beyond the values of the golden file. The sources are
// Debezium's PostgresValueConverter and Connect's Values.convertToString.
func TestDebeziumHeaders(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ typ, text, want string }{
		{"bool", "f", "false"},
		{"date", "1970-01-01", "0"},
		{"date", "1969-12-31", "-1"},
		{"date", "0044-03-15 BC", "-735160"},
		{"date", "infinity", "-2147472692"},
		{"date", "-infinity", "-2147472691"},
		{"time", "00:00:00", "0"},
		{"time", "24:00:00", "86400000000"},
		{"time(3)", "23:59:59.999", "86399999"},
		{"time(0)", "00:00:01", "1000"},
		{"time(4)", "00:00:01", "1000000"},
		{"timestamp(3)", "2024-03-05 06:07:08.123", "1709618828123"},
		{"timestamp", "1969-12-31 23:59:59.999999", "-1"},
		{"timestamp", "infinity", "9223372036825200000"},
		{"timestamp", "-infinity", "-9223372036832400000"},
		{"timestamp(3)", "infinity", "9223372036825200"},
		{"timestamptz", "2024-03-05 06:07:08+00", "2024-03-05T06:07:08.000000Z"},
		{"timestamptz", "2024-03-05 06:07:08.5+05:30", "2024-03-05T00:37:08.500000Z"},
		{"timestamptz(3)", "2024-03-05 06:07:08.12+00", "2024-03-05T06:07:08.120Z"},
		{"timestamptz(0)", "2024-03-05 06:07:08+00", "2024-03-05T06:07:08Z"},
		{"timestamptz", "0044-03-15 12:00:00+00 BC", "-0043-03-15T12:00:00.000000Z"},
		{"timestamptz", "0001-03-15 12:00:00+00 BC", "0000-03-15T12:00:00.000000Z"},
		{"timestamptz", "12345-03-15 12:00:00+00", "+12345-03-15T12:00:00.000000Z"},
		{"timestamptz", "infinity", "infinity"},
		{"timetz", "10:00:00+02", "08:00:00Z"},
		{"timetz", "01:00:00.500+02:30", "22:30:00.5Z"},
		{"timetz", "24:00:00+00", "24:00:00Z"},
		{"numeric(10,2)", "-0.05", "-0.05"},
		{"numeric(10,2)", "0.00", "0.00"},
		{"numeric(10,0)", "12", "12"},
		{"numeric(10,6)", "0.000001", "0.000001"},
		{"numeric(10,7)", "0.0000001", "1E-7"},
		{"numeric(10,8)", "0.00000012", "1.2E-7"},
		{"numeric(10,8)", "0.00000000", "0E-8"},
		{"numeric(40,10)", "123456789012345678901234567890.0000000001", "123456789012345678901234567890.0000000001"},
		{"numeric", "0", `{"scale":0,"value":"AA=="}`},
		{"numeric", "0.000", `{"scale":0,"value":"AA=="}`},
		{"numeric", "-1", `{"scale":0,"value":"/w=="}`},
		{"numeric", "128", `{"scale":0,"value":"AIA="}`},
		{"numeric", "-128", `{"scale":0,"value":"gA=="}`},
		{"numeric", "100", `{"scale":0,"value":"ZA=="}`},
		{"numeric", "1.50", `{"scale":1,"value":"Dw=="}`},
		{"float8", "1", "1.0"},
		{"float8", "-0", "-0.0"},
		{"float8", "0.30000000000000004", "0.30000000000000004"},
		{"float8", "10000000", "1.0E7"},
		{"float8", "9999999", "9999999.0"},
		{"float8", "0.001", "0.001"},
		{"float8", "0.00099", "9.9E-4"},
		{"float8", "1e+23", "1.0E23"},
		{"float8", "5e-324", "4.9E-324"},
		{"float8", "1.7976931348623157e+308", "1.7976931348623157E308"},
		{"float8", "NaN", "NaN"},
		{"float8", "-Infinity", "-Infinity"},
		{"float4", "0.1", "0.1"},
		{"float4", "1e+10", "1.0E10"},
		{"float4", "3.4028235e+38", "3.4028235E38"},
		{"bytea", `\x`, ""},
		{"bit(1)", "1", "true"},
		{"bit(1)", "0", "false"},
		{"bit(9)", "100000001", "AQE="},
		{"varbit", "101", "BQ=="},
		{"varbit", "000", ""},
		{"interval", "00:00:00", "0"},
		{"interval", "1 mon", "2629800000000"},
		{"interval", "1 year", "31557600000000"},
		{"interval", "1 year 2 mons 3 days 04:05:06.789", "37091106789000"},
		{"interval", "-1 days +02:03:04", "-79016000000"},
		{"interval", "-00:00:01.5", "-1500000"},
		{"_int4", "{}", "[]"},
		{"_int4", "{1,NULL,-3}", "[1,null,-3]"},
		{"_text", `{a,"b c","d\"e","f\\g",NULL,"NULL","",é}`, `["a","b c","d\"e","f\\g",null,"NULL","","é"]`},
		{"_text", `{"a,b","{c}"}`, `["a,b","{c}"]`},
		{"_bool", "{t,f}", "[true,false]"},
		{"_numeric", "{1.50}", `[{"scale":1,"value":"Dw=="}]`},
		{"_numeric(10,2)", "{1.50}", `[1.50]`},
		{"_uuid", "{" + someID + "}", `["` + someID + `"]`},
		{"_jsonb", `{"{\"a\": 1}"}`, `["{\"a\": 1}"]`},
		{"_date", "{1970-01-02}", "[1]"},
		{"_timestamptz", `{"2024-03-05 06:07:08+00"}`, `["2024-03-05T06:07:08.000000Z"]`},
		{"_bytea", `{"\\xdeadbeef"}`, `["3q2+7w=="]`},
		{"inet", "10.0.0.1/8", "10.0.0.1/8"},
	} {
		got, problem := convert(t, c.typ, c.text, styleHeader)
		if problem != "" || got != c.want {
			t.Errorf("%s %s: %s %s, want %s", c.typ, c.text, got, problem, c.want)
		}
	}
}

// In an envelope Connect's JsonConverter writes the value instead.
func TestDebeziumJSON(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ typ, text, want string }{
		{"numeric(10,2)", "12.50", `"BOI="`},
		{"numeric", "1.50", `{"scale":1,"value":"Dw=="}`},
		{"float8", "NaN", `"NaN"`},
		{"float8", "1", "1.0"},
		{"bytea", `\xdeadbeef`, `"3q2+7w=="`},
		{"text", "a\"b\\\n\x01é\u2028</script>", `"a\"b\\\n\u0001é` + "\u2028" + `</script>"`},
		{"_text", `{"a\"b"}`, `["a\"b"]`},
		{"bool", "t", "true"},
		{"date", "1970-01-02", "1"},
		{"timestamptz", "infinity", `"infinity"`},
	} {
		got, problem := convert(t, c.typ, c.text, styleJSON)
		if problem != "" || got != c.want {
			t.Errorf("%s %s: %s %s, want %s", c.typ, c.text, got, problem, c.want)
		}
	}
}

// What Debezium has no form for, or what is no value of its type, is refused.
func TestDebeziumRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]string{
		{"numeric", "NaN"},
		{"numeric", "Infinity"},
		{"numeric", ""},
		{"numeric", "1e5"},
		{"numeric(10,2)", "1.555"},
		{"bool", "true"},
		{"date", "2024-02-30"},
		{"time", "25:00:00"},
		{"timestamp", "294276-12-31 23:59:59"},
		{"timestamptz", "2024-03-05 06:07:08"},
		{"timetz", "10:00:00"},
		{"interval", ""},
		{"interval", "P1D"},
		{"interval", "1 week"},
		{"bytea", "abc"},
		{"bit(3)", "102"},
		{"float8", "abc"},
		{"_int4", "{{1,2},{3,4}}"},
		{"_int4", "[0:1]={1,2}"},
		{"_int4", "{1,2"},
		{"_int4", "{1,,2}"},
		{"_int4", "1"},
		{"_bool", "{x}"},
	} {
		if got, problem := convert(t, c[0], c[1], styleHeader); problem == "" {
			t.Errorf("%s %q became %s", c[0], c[1], got)
		}
	}
	for _, typ := range []string{"point", "money", "_time", "_interval", "_point", "numeric(3,-2)"} {
		c := columnOf("c", typ)
		if debeziumSupports(newTypeTable().lookup(c.TypeOID, c.TypeMod)) == "" {
			t.Errorf("%s is accepted", typ)
		}
	}
	types := newTypeTable()
	types.define(17001, "", "numeric")
	types.define(17002, "public", "hstore")
	types.define(17003, "public", "mood")
	types.define(17004, "", "date")
	for oid, supported := range map[uint32]bool{17001: false, 17002: false, 17003: true, 17004: true} {
		if got := debeziumSupports(types.lookup(oid, -1)); (got == "") != supported {
			t.Errorf("type %d: %q", oid, got)
		}
	}
}

// The bytes of a numeric are those of Java's BigInteger.toByteArray: two's
// complement, and no shorter form reads back as the same number.
func TestUnscaledBytes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		digits := rapid.StringMatching(`-?[1-9][0-9]{0,80}`).Draw(t, "digits")
		scale := rapid.IntRange(0, 30).Draw(t, "scale")
		want, _ := new(big.Int).SetString(digits, 10)
		text := withPoint(digits, scale)
		var conv converter
		out, problem := conv.append(nil, pgType{kind: kindNumeric, mod: int32(100<<16 | scale + 4)}, []byte(text), styleJSON)
		if problem != "" {
			t.Fatal(problem)
		}
		raw, err := base64.StdEncoding.DecodeString(strings.Trim(string(out), `"`))
		if err != nil {
			t.Fatal(err)
		}
		if got := fromTwosComplement(raw); got.Cmp(want) != 0 {
			t.Fatalf("%s gives %v", text, raw)
		}
		if len(raw) > 1 && (raw[0] == 0 && raw[1] < 0x80 || raw[0] == 0xFF && raw[1] >= 0x80) {
			t.Fatalf("%s gives %v, which is too long", text, raw)
		}
	})
}

func withPoint(digits string, scale int) string {
	sign := ""
	if digits[0] == '-' {
		sign, digits = "-", digits[1:]
	}
	for len(digits) <= scale {
		digits = "0" + digits
	}
	if scale == 0 {
		return sign + digits
	}
	return sign + digits[:len(digits)-scale] + "." + digits[len(digits)-scale:]
}

func fromTwosComplement(raw []byte) *big.Int {
	n := new(big.Int).SetBytes(raw)
	if raw[0] >= 0x80 {
		n.Sub(n, new(big.Int).Lsh(big.NewInt(1), uint(len(raw)*8)))
	}
	return n
}

// A float reads back as itself, in Java's form.
func TestFloatReadsBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		f := rapid.Float64().Draw(t, "f")
		text := strconv.FormatFloat(f, 'g', -1, 64)
		out, problem := appendFloat(nil, []byte(text), 64, styleHeader)
		if problem != "" {
			t.Fatal(problem)
		}
		back, err := strconv.ParseFloat(string(out), 64)
		if err != nil || back != f || !strings.Contains(string(out), ".") {
			t.Fatalf("%g became %s", f, out)
		}
	})
}

// The longest numeric that PostgreSQL can hold is converted in reasonable time.
func TestLongestNumeric(t *testing.T) {
	t.Parallel()
	got, problem := convert(t, "numeric", strings.Repeat("9", 131072)+"."+strings.Repeat("9", 16383), styleHeader)
	if problem != "" || len(got) < 80_000 {
		t.Errorf("%d bytes, %s", len(got), problem)
	}
}

// A header with format debezium in a message, beside one in plain text.
func TestHeaderFormats(t *testing.T) {
	t.Parallel()
	rel := relation("outbox", fixtureColumns+", by bytea, n numeric")
	s := fixture()
	s.Mapping.Headers = []Field{
		{Column: "created_at", Name: "text"},
		{Column: "created_at", Name: "iso", Format: FormatDebezium},
		{Column: "by", Format: FormatDebezium},
		{Column: "n", Format: FormatDebezium},
	}
	msg := routeOne(t, s, rel, someID, "order", "1", "x", "1", "2024-03-05 06:07:08+00", `\x`, nil)
	for name, want := range map[string]string{
		"text": `"2024-03-05 06:07:08+00"`, "iso": `"2024-03-05T06:07:08.000000Z"`, "by": `""`, "n": "null",
	} {
		if got := header(&msg, name); got != want {
			t.Errorf("header %s is %s, want %s", name, got, want)
		}
	}
	refuseOne(t, event.ReasonUndecodable, s, rel, someID, "order", "1", "x", "1", "yesterday", nil, nil)
}
