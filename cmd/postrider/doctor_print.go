package main

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/postrider/postrider/internal/doctor"
)

// doctorPrinter writes a line a finding, and the fix on the next.
type doctorPrinter struct {
	out   io.Writer
	ascii bool
}

var (
	doctorSigns   = map[doctor.State]string{doctor.OK: "✓", doctor.Failed: "✗", doctor.Warning: "!", doctor.NotChecked: "-"}
	doctorLetters = map[doctor.State]string{doctor.OK: "ok", doctor.Failed: "FAIL", doctor.Warning: "warn", doctor.NotChecked: "-"}
)

func (p *doctorPrinter) tell(f doctor.Finding) {
	mark := doctorSigns[f.State]
	if p.ascii {
		mark = fmt.Sprintf("%-4s", doctorLetters[f.State])
	}
	p.wrap(mark+" ", f.Name+": "+f.Finding)
	if f.Fix != "" {
		p.wrap(strings.Repeat(" ", utf8.RuneCountInString(mark)+1)+"Try: ", f.Fix)
	}
}

// wrap writes text behind a lead; further lines stand below the text.
func (p *doctorPrinter) wrap(lead, text string) {
	indent := strings.Repeat(" ", utf8.RuneCountInString(lead))
	for i, line := range wrap(shown(text), screenWidth-len(indent)) {
		if i > 0 {
			lead = indent
		}
		fmt.Fprintln(p.out, lead+line)
	}
}

func (p *doctorPrinter) summary(r doctor.Report) {
	count := func(s doctor.State) (n int) {
		for i := range r.Findings {
			if r.Findings[i].State == s {
				n++
			}
		}
		return n
	}
	fmt.Fprintf(p.out, "%d ok, %d %s, %d failed, %d not checked\n", count(doctor.OK), r.Warnings, map[bool]string{true: "warning", false: "warnings"}[r.Warnings == 1], r.Failed, count(doctor.NotChecked))
}

// utf8Locale goes by the locale as a C program does: the first of these that is set decides.
func utf8Locale(getenv func(string) string) bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := getenv(name); v != "" {
			v = strings.ToUpper(v)
			return strings.Contains(v, "UTF-8") || strings.Contains(v, "UTF8")
		}
	}
	return false
}
