package router

import (
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// What Java's RegexRouter gives: Matcher.matches decides, replaceFirst replaces.
func TestJavaPatterns(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ regex, replacement, value, want string }{
		{`(?<r>.*)`, `outbox.event.${r}`, "order", "outbox.event.order"},
		{`(?<dom>[a-z]+)\.(?<ent>.*)`, `x.${dom}-events-${ent}`, "a.b.c", "x.a-events-b.c"},
		{`(?<dom>[a-z]+)\.(?<ent>.*)`, `x.${dom}`, "Sales.order", "-"},
		{`(.*)`, `$1`, "", ""},
		{`(a)(b)`, `$2$1`, "ab", "ba"},
		{`(a)`, `$12`, "a", "a2"},
		{`(a)(b)(c)(d)(e)(f)(g)(h)(i)(j)(k)`, `$11$12`, "abcdefghijk", "ka2"},
		{`(.)`, `$0.$1`, "a", "a.a"},
		{`(a)?b`, `x$1`, "b", "x"},
		{`a|ab`, `x`, "ab", "xb"},
		{`(.*?)`, `x$1`, "ab", "xab"},
		{`ab?`, `\x\.\$1`, "ab", "x.$1"},
		{`(?i)ORDER`, `x`, "oRder", "x"},
		{`(?i:O)rder`, `x`, "order", "x"},
		{`(?i:O)rder`, `x`, "orDer", "-"},
		{`[\w.-]+`, `x`, "a.b-c_D9", "x"},
		{`\Qa.b\E+`, `x`, "a.bb", "x"},
		{`\Qa.b`, `x`, "a.b", "x"},
		{`\p{Lower}\p{Upper}\P{Digit}[\p{Alpha}]\p{L}\p{Lu}\pL\p{IsLatin}`, `x`, "aB_cdEfg", "x"},
		{`\x41\u0042\x{43}`, `x`, "ABC", "x"},
		{`a\-b\_c\/d\:`, `x`, "a-b_c/d:", "x"},
		{`[a\]\[^&-]+`, `x`, "a][^&-", "x"},
		{`a.b`, `x`, "a\nb", "-"},
		{`a.b`, `x`, "a\rb", "-"},
		{`a.b`, `x`, "a\u2028b", "-"},
		{`(?s)a.b`, `x`, "a\nb", "x"},
		{`(?s:a.)b.`, `x`, "a\nb\n", "-"},
		{`a\sb`, `x`, "a\vb", "x"},
		{`a[\s]b`, `x`, "a\vb", "x"},
		{`[\S]+`, `x`, "ab", "x"},
		{`a{2}b{1,}c{0,2}`, `x`, "aabcc", "x"},
		{`^a$`, `x`, "a", "x"},
		{`é日.`, `x`, "é日語", "x"},
		{`a]}`, `x`, "a]}", "x"},
		{`(?:a)(?<b>b)`, `$1${b}`, "ab", "bb"},
	} {
		p, err := compileJava(c.regex)
		if err != nil {
			t.Errorf("%s: %v", c.regex, err)
			continue
		}
		r, err := parseReplacement(c.replacement, p.find)
		if err != nil {
			t.Errorf("%s: %v", c.replacement, err)
			continue
		}
		got := "-"
		if p.full.MatchString(c.value) {
			got = r.apply(p, c.value)
		}
		if got != c.want {
			t.Errorf("%s, %s on %q: %q, want %q", c.regex, c.replacement, c.value, got, c.want)
		}
	}
}

// What RE2 lacks, or would read in another sense, is a configuration error.
func TestJavaPatternsRefused(t *testing.T) {
	t.Parallel()
	for regex, word := range map[string]string{
		`(?=a)b`: "lookahead", `(?!a)b`: "lookahead", `(?<=a)b`: "lookbehind", `(?<!a)b`: "lookbehind",
		`(?>a)`: "atomic", `a++`: "possessive", `a*+`: "possessive", `a?+`: "possessive", `a{2}+`: "possessive",
		`(a)\1`: "back references", `(?<n>a)\k<n>`: "back references",
		`[a-z&&[^b]]`: "", `[a&&b]`: "intersection", `[a[bc]]`: "class inside a class", `[[:alpha:]]`: "class inside a class",
		`(?U)\w`: "flag U", `(?x) a`: "flag x", `(?u)a`: "flag u", `(?m)^a`: "flag m", `(?d)a`: "flag d",
		`(?P<n>a)`: "", `(?<1a>b)`: "name", `(?<a_b>c)`: "name", `(?<n>a)(?<n>b)`: "twice",
		`a{,2}`: "{", `{`: "repetition", `*a`: "repetition", `a|*`: "repetition", `(*a)`: "repetition", `a**`: "repetition",
		`(a`: "not closed", `a)`: "closes nothing", `[a`: "not closed", `[]a]`: "]", `a\`: "at the end",
		`\Z`: "not supported", `\G`: "not supported", `\R`: "not supported", `\h`: "not supported", `\v`: "not supported",
		`\01`: "not supported", `\cA`: "not supported", `\y`: "not supported", `[\b]`: "not supported",
		`\p{javaLowerCase}`: "property", `\p{InGreek}`: "property", `\p{IsAlphabetic}`: "property", `\p{L1}`: "property", `\p`: "property",
		`\u12`: "number", `\ud800`: "no character", `a{2000}`: "", `[z-a]`: "",
	} {
		_, err := compileJava(regex)
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v", regex, err)
		}
	}
	re := regexp.MustCompile(`(?P<a>x)(y)`)
	for _, replacement := range []string{`$`, `a$`, `${`, `${}`, `${a`, `${b}`, `${1}`, `$3`, `$x`, `a\`} {
		if _, err := parseReplacement(replacement, re); err == nil {
			t.Errorf("replacement %s is accepted", replacement)
		}
	}
}

// Where both engines read a pattern alike, the translation changes nothing.
func TestTranslationKeepsTheMeaning(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		pattern := rapid.StringMatching(`([ab]|\(a\)|\[ab\]|\[\^a\]|a\*|b\+\?|a\?|\\w|\\d|\\\.|\|){0,8}`).Draw(t, "pattern")
		value := rapid.StringMatching(`[ab.1]{0,6}`).Draw(t, "value")
		want, err := regexp.Compile(`\A(?:` + pattern + `)\z`)
		if err != nil {
			return
		}
		p, err := compileJava(pattern)
		if err != nil {
			t.Fatalf("%s: %v", pattern, err)
		}
		if got := p.full.MatchString(value); got != want.MatchString(value) {
			t.Fatalf("%s on %q: %v", pattern, value, got)
		}
	})
}

func TestGlob(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern, value string
		want           bool
	}{
		{"*", "", true},
		{"a*", "abc", true},
		{"*c", "abc", true},
		{"a*c", "abcc", true},
		{"a*b", "abc", false},
		{"?", "é", true},
		{"??", "é", false},
		{"a?c", "abc", true},
		{"", "", false},
		{"abc", "ABC", false},
		{"*a*b*c*", "xxaxxbxxcxx", true},
		{"[a]", "a", false},
		{"a.c", "abc", false},
		{"*é", "aé", true},
	} {
		if c.pattern == "" {
			continue
		}
		if got := globMatch(c.pattern, c.value); got != c.want {
			t.Errorf("%q on %q: %v", c.pattern, c.value, got)
		}
	}
	long := strings.Repeat("a", 5000)
	if globMatch(strings.Repeat("*a", 50)+"*b", long) {
		t.Error("matches")
	}
}

// A glob is the regular expression that its two signs stand for.
func TestGlobIsRegex(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		pattern := rapid.StringMatching(`[ab*?é.]{1,8}`).Draw(t, "pattern")
		value := rapid.StringMatching(`[abé.]{0,8}`).Draw(t, "value")
		re := regexp.MustCompile(`(?s)\A` + strings.NewReplacer(`\*`, `.*`, `\?`, `.`).Replace(regexp.QuoteMeta(pattern)) + `\z`)
		if got := globMatch(pattern, value); got != re.MatchString(value) {
			t.Fatalf("%q on %q: %v", pattern, value, got)
		}
	})
}
