package doctor

import (
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/operr"
)

func fixf(format string, args ...any) string { return fmt.Sprintf(format, args...) }

// fullProblem keeps what was being done in the words: several things may have been.
func fullProblem(err error) []answer { return fail(operr.HintOf(err), "%s", oneLine(err.Error())) }

// oneLine puts joined errors behind each other.
func oneLine(text string) string { return strings.ReplaceAll(text, "\n", "; ") }

// bytesText is for people: powers of 1024 with at most one decimal.
func bytesText(n int64) string {
	value, unit := float64(n), "B"
	for _, next := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if value < 1024 {
			break
		}
		value, unit = value/1024, next
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", value), ".0") + " " + unit
}

// words is a duration without its zeros, in days where it is long.
func words(d time.Duration) string {
	const day = 24 * time.Hour
	if d >= 2*day {
		if d%day == 0 {
			return fmt.Sprintf("%d days", d/day)
		}
		return fmt.Sprintf("%.1f days", d.Hours()/24)
	}
	s := d.String()
	s = strings.TrimSuffix(s, "0s")
	if s == "" || s != d.String() && !strings.HasSuffix(s, "m") {
		return d.String()
	}
	if t := strings.TrimSuffix(s, "h0m"); t != s {
		return t + "h"
	}
	return s
}

func ident(names ...string) string { return pgx.Identifier(names).Sanitize() }

// localhost says that an address is on this machine beyond doubt: a Unix socket, or the loopback.
func localhost(host string) bool {
	if strings.HasPrefix(host, "/") || host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// list joins at most n of the names.
func list(names []string, n int) string {
	if len(names) <= n {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:n], ", "), len(names)-n)
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
