package config

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// mask stands where a secret would.
const mask = "********"

// Secret is a text that is never shown: not by fmt, not by YAML or JSON, not in
// an error. Reveal is the one way to its value.
//
// The text is kept in a function, because fmt prints unexported fields without
// asking their methods.
type Secret struct{ text func() string }

// NewSecret wraps a text.
func NewSecret(text string) Secret {
	if text == "" {
		return Secret{}
	}
	return Secret{text: func() string { return text }}
}

// Reveal gives the text.
func (s Secret) Reveal() string {
	if s.text == nil {
		return ""
	}
	return s.text()
}

// IsZero says that there is no secret; YAML's omitempty asks it.
func (s Secret) IsZero() bool { return s.text == nil }

// String is the mask, or nothing where there is no secret.
func (s Secret) String() string {
	if s.IsZero() {
		return ""
	}
	return mask
}

// Format makes every verb of fmt, %#v too, print the mask.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(s.String())) }

// MarshalYAML shows the mask.
func (s Secret) MarshalYAML() (any, error) { return s.String(), nil }

// MarshalText shows the mask, so that JSON does too.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

func (*Secret) wants() string { return "a text" }

func (s *Secret) decodeText(text string) error {
	if text == "" {
		return errors.New("is empty")
	}
	*s = NewSecret(text)
	return nil
}

// Duration is a time.Duration that is written with its unit: 30s, 1m30s, 500ms.
type Duration time.Duration

// String is the shortest spelling: 5m, not 5m0s.
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// MarshalYAML writes it as it is read.
func (d Duration) MarshalYAML() (any, error) { return d.String(), nil }

func (*Duration) wants() string { return "a duration with its unit, such as 500ms, 30s or 2m" }

func (d *Duration) decodeText(text string) error {
	v, err := time.ParseDuration(text)
	if err != nil {
		return errors.New("wants " + d.wants())
	}
	*d = Duration(v)
	return nil
}

// Bytes is a size that is written with its unit: 32MiB, 64KiB, or plain bytes.
type Bytes int64

var (
	sizeText  = regexp.MustCompile(`^([0-9]{1,18}) ?([A-Za-z]*)$`)
	sizeUnits = map[string]int64{
		"": 1, "B": 1,
		"kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9,
		"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30,
	}
)

func (b Bytes) String() string {
	for _, unit := range []string{"GiB", "MiB", "KiB"} {
		if n := sizeUnits[unit]; b != 0 && int64(b)%n == 0 {
			return strconv.FormatInt(int64(b)/n, 10) + unit
		}
	}
	return strconv.FormatInt(int64(b), 10)
}

// MarshalYAML writes it as it is read.
func (b Bytes) MarshalYAML() (any, error) {
	if s := b.String(); s != strconv.FormatInt(int64(b), 10) {
		return s, nil
	}
	return int64(b), nil
}

func (*Bytes) wants() string { return "a size, such as 32MiB, 64KiB or a number of bytes" }

func (b *Bytes) decodeText(text string) error {
	m := sizeText.FindStringSubmatch(text)
	if m == nil {
		return errors.New("wants " + b.wants())
	}
	factor, ok := sizeUnits[m[2]]
	if !ok {
		return errors.New("wants a size in B, kB, MB, GB, KiB, MiB or GiB")
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	if err != nil || n > math.MaxInt64/factor {
		return errors.New("is too large a size")
	}
	*b = Bytes(n * factor)
	return nil
}

// Template is a text in which ${name} names a field of the event, so that the
// environment is written ${env:NAME} in it.
type Template string

func (*Template) wants() string { return "a text" }

func (t *Template) decodeText(text string) error {
	*t = Template(text)
	return nil
}
