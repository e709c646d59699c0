package router

import (
	"errors"
	"slices"

	"github.com/postrider/postrider/event"
)

// Certain leaves of Bind's problems those that rel, read from the catalog, is enough to
// prove; nil where none is left. A domain, for one, may turn out to be of a type that fits.
func Certain(bound error, rel *event.Relation) error {
	var fault *BindError
	if !errors.As(bound, &fault) {
		return bound
	}
	sure := *fault
	sure.Problems = slices.DeleteFunc(slices.Clone(fault.Problems), func(p BindProblem) bool {
		i := rel.ColumnIndex(p.Column)
		return i >= 0 && rel.Columns[i].TypeOID >= firstUserOID
	})
	if len(sure.Problems) == 0 {
		return nil
	}
	return &sure
}
