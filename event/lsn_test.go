package event_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/postrider/postrider/event"
)

// case C40, trap 11: the whole text is an LSN, or nothing is.
func TestParseLSN(t *testing.T) {
	t.Parallel()
	tests := []struct {
		in   string
		want event.LSN
		text string // "" where it is refused
	}{
		{"0/16b3748", 0x16B3748, "0/16B3748"},
		{"FF/0", 0xFF00000000, "FF/0"},
		{"0/1", 1, "0/1"},
		{"0/0", 0, "0/0"},
		{"00000000/00000001", 1, "0/1"},
		{"FFFFFFFF/FFFFFFFF", 0xFFFFFFFFFFFFFFFF, "FFFFFFFF/FFFFFFFF"},
		{"16/B374D848", 0x16B374D848, "16/B374D848"},
		{"aBcDeF01/2345678", 0xABCDEF0102345678, "ABCDEF01/2345678"},
		// From the case.
		{in: "0/16B3748xyz"},
		{in: "1/FFFFFFFFF"},
		{in: " 0/1"},
		{in: "0/1 "},
		{in: "FFFFFFFF1/0"},
		{in: "0x0/1"},
		{in: "16B3748"},
		{in: "/1"},
		{in: "0/"},
		{in: "-1/1"},
		// Others of their kind.
		{in: ""},
		{in: "/"},
		{in: "0/1/2"},
		{in: "0//1"},
		{in: "0/ 1"},
		{in: "0 /1"},
		{in: "+0/1"},
		{in: "0/+1"},
		{in: "0/-1"},
		{in: "0/0x1"},
		{in: "0/1\n"},
		{in: "\t0/1"},
		{in: "0/1\x00"},
		{in: "0/000000001"},
		{in: "000000000/1"},
		{in: "0/1_0"},
		{in: "0/1.0"},
		{in: "0/1e+2"},
		{in: "G/1"},
		{in: "0/g"},
		{in: "0/1;"},
		{in: "'0/1'"},
		{in: "0\\1"},
		{in: "0-1"},
		{in: "0/\uff11"}, // full-width digit
		{in: "0/\u0661"}, // Arabic-Indic digit
		{in: "0/1\u00a0"},
		{in: "\ufeff0/1"},
		{in: strings.Repeat("0", 1000) + "/1"},
	}
	for _, tt := range tests {
		t.Run(tt.in, func(t *testing.T) {
			t.Parallel()
			got, err := event.ParseLSN(tt.in)
			if tt.text == "" {
				if err == nil {
					t.Fatalf("accepted as %s", got)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got != tt.want || got.String() != tt.text {
				t.Errorf("got %d %s, want %d %s", got, got, tt.want, tt.text)
			}
		})
	}
}

// case C40: positions are compared as numbers, not as text.
func TestLSNOrder(t *testing.T) {
	t.Parallel()
	rising := []string{"0/9", "0/10", "0/FFFFFFFF", "1/0", "9/FFFFFFFF", "A/0", "10/0", "FFFFFFFF/FFFFFFFF"}
	for i := 1; i < len(rising); i++ {
		low, err := event.ParseLSN(rising[i-1])
		if err != nil {
			t.Fatal(err)
		}
		high, err := event.ParseLSN(rising[i])
		if err != nil {
			t.Fatal(err)
		}
		if low >= high {
			t.Errorf("%s is not below %s", low, high)
		}
	}
}

// case C40: what is accepted is exactly this grammar, and survives the way to text
// and back.
func FuzzParseLSN(f *testing.F) {
	for _, seed := range []string{"0/16B3748", "0/16B3748xyz", " 0/1", "1/FFFFFFFFF", "0x0/1", "ff/0", "/", ""} {
		f.Add(seed)
	}
	grammar := regexp.MustCompile(`\A[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}\z`)
	f.Fuzz(func(t *testing.T, in string) {
		lsn, err := event.ParseLSN(in)
		if (err == nil) != grammar.MatchString(in) {
			t.Fatalf("%q: error %v", in, err)
		}
		if err != nil {
			return
		}
		again, err := event.ParseLSN(lsn.String())
		if err != nil || again != lsn {
			t.Fatalf("%q became %s, which became %s (%v)", in, lsn, again, err)
		}
	})
}
