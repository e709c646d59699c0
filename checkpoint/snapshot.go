package checkpoint

import (
	"fmt"
	"strconv"
	"strings"
)

// Snapshot is a pg_snapshot: which transactions had ended when it was taken.
type Snapshot struct {
	// Xmin: all transactions below it had ended. Xmax: none from it on had.
	Xmin, Xmax uint64
	// Running holds those between that had not ended. It names no subtransactions.
	Running []uint64
}

// ParseSnapshot reads PostgreSQL's text form, "10:20:10,14,15".
func ParseSnapshot(text string) (Snapshot, error) {
	var s Snapshot
	bad := fmt.Errorf("%q is not a pg_snapshot: want xmin:xmax:xip,…", text)
	parts := strings.Split(text, ":")
	if len(parts) != 3 {
		return s, bad
	}
	var err1, err2 error
	s.Xmin, err1 = strconv.ParseUint(parts[0], 10, 64)
	s.Xmax, err2 = strconv.ParseUint(parts[1], 10, 64)
	if err1 != nil || err2 != nil || s.Xmin < firstNormalXID || s.Xmin > s.Xmax {
		return s, bad
	}
	for _, part := range strings.FieldsFunc(parts[2], func(r rune) bool { return r == ',' }) {
		xid, err := strconv.ParseUint(part, 10, 64)
		if err != nil || xid < s.Xmin || xid >= s.Xmax {
			return s, bad
		}
		s.Running = append(s.Running, xid)
	}
	return s, nil
}

// UncoveredSQL is the negation of Covered as an SQL condition on a column of type xid, so
// that a large table need not be sent to be sifted. column is SQL, not a name to quote.
func (s Snapshot) UncoveredSQL(column string) string {
	low := fmt.Sprintf("%s::text::bigint", column)
	// In [-2^31, 2^31): how far the row's 32 bits lie from those of Xmax.
	distance := fmt.Sprintf("((%s - %d + 6442450944) %% 4294967296 - 2147483648)", low, uint32(s.Xmax))
	full := fmt.Sprintf("(%d + %s)", s.Xmax, distance)
	return fmt.Sprintf("(%[1]s >= %[2]d AND NOT (%[3]s >= %[2]d AND %[3]s < %[4]d))", low, firstNormalXID, full, s.Xmin)
}

// firstNormalXID: 1 and 2 mark rows that are older than every transaction.
const firstNormalXID = 3

// Covered says that a row with this xmin (the system column: the low 32 bits of the
// inserting transaction's id) is proved to be published, given that s is ticked off.
// Everything else is a suspect, not a gap: rows of transactions that s saw running or
// did not know, old rows that an UPDATE gave a new xmin, and all between s.Xmin and
// s.Xmax, because a row under a savepoint carries the id of a subtransaction, which s
// does not name (rule 4).
//
// The full id is s.Xmax + int32(xmin - uint32(s.Xmax)); a row more than 2^31
// transactions away cannot be told and may come out either way.
func Covered(s Snapshot, xmin uint32) bool {
	if xmin < firstNormalXID {
		return true
	}
	full := int64(s.Xmax) + int64(int32(xmin-uint32(s.Xmax)))
	return full >= firstNormalXID && uint64(full) < s.Xmin
}
