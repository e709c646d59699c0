package doctor

import (
	"errors"
	"fmt"

	"github.com/postrider/postrider/internal/operr"
)

// answer is a finding before it has its check's name.
type answer struct {
	state     State
	text, fix string
	// unanswered: the question matters here and could not be put.
	unanswered bool
}

// The constructors give a list, since a check answers with one.

func ok(format string, args ...any) []answer {
	return []answer{{state: OK, text: fmt.Sprintf(format, args...)}}
}

func warn(fix, format string, args ...any) []answer {
	return []answer{{state: Warning, text: fmt.Sprintf(format, args...), fix: fix}}
}

func fail(fix, format string, args ...any) []answer {
	return []answer{{state: Failed, text: fmt.Sprintf(format, args...), fix: fix}}
}

// skip is for what need not be asked here, or nobody can know from here.
func skip(format string, args ...any) []answer {
	return []answer{{state: NotChecked, text: "not checked, because " + fmt.Sprintf(format, args...)}}
}

// unanswered is for a question that matters and could not be put.
func unanswered(err error) []answer {
	a := answer{state: NotChecked, unanswered: true}
	if dependency := (*dependencyError)(nil); errors.As(err, &dependency) {
		a.text = "not checked, because " + dependency.because
		return []answer{a}
	}
	a.text, a.fix = "not checked, because the question failed: "+err.Error(), operr.HintOf(err)
	return []answer{a}
}

// dependencyError says that what a question needs does not serve; another check names why.
type dependencyError struct{ because string }

func (e *dependencyError) Error() string { return e.because }

func needs(because string) error { return &dependencyError{because} }

// problems turns the start checks' words into failures.
func problems(list []*operr.Error) (all []answer) {
	for _, p := range list {
		all = append(all, fail(p.Hint, "%s", causeOf(p))...)
	}
	return all
}

// problem is a failure by an error that has its hint.
func problem(err error) []answer {
	var known *operr.Error
	if errors.As(err, &known) {
		return fail(operr.HintOf(err), "%s", causeOf(known))
	}
	return fail("", "%s", err.Error())
}

// causeOf leaves out what was being done: the check's name says it.
func causeOf(e *operr.Error) string {
	switch {
	case e.Err == nil:
		return e.Error()
	case e.Subject == "":
		return e.Err.Error()
	default:
		return e.Subject + ": " + e.Err.Error()
	}
}

// orOK is the finding of a check that found nothing wrong.
func orOK(found []answer, format string, args ...any) []answer {
	if len(found) > 0 {
		return found
	}
	return ok(format, args...)
}
