package checkpoint

import "strings"

// literal quotes a string constant for SQL text that is shown to a person. Queries
// of our own pass parameters instead.
func literal(s string) string {
	q := "'" + strings.ReplaceAll(s, "'", "''") + "'"
	if strings.Contains(s, `\`) {
		return "E" + strings.ReplaceAll(q, `\`, `\\`)
	}
	return q
}
