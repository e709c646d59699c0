package parking

import "time"

func deref[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

func bytesOf(s *string) []byte {
	if s == nil {
		return nil
	}
	return []byte(*s)
}

// nullableTime scans a column that may be null.
type nullableTime struct{ at *time.Time }

func (n nullableTime) time() time.Time { return deref(n.at) }
