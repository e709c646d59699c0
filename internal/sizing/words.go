package sizing

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// number groups digits: 12,345.
func number(n int) string {
	digits := strconv.Itoa(n)
	var b strings.Builder
	for i, c := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 && digits[i-1] != '-' {
			b.WriteByte(',')
		}
		b.WriteRune(c)
	}
	return b.String()
}

// rounded leaves a rate with the three digits that a measurement is good for.
func rounded(rate float64) string {
	step := 1
	for rate/float64(step) >= 1000 {
		step *= 10
	}
	return number(int(rate/float64(step)+0.5) * step)
}

// size is bytes for people, in the units of disks.
func size(n int64) string {
	switch {
	case n < 1e3:
		return fmt.Sprintf("%d B", n)
	case n < 1e6:
		return fmt.Sprintf("%.0f kB", float64(n)/1e3)
	case n < 1e9:
		return fmt.Sprintf("%.0f MB", float64(n)/1e6)
	}
	return fmt.Sprintf("%.1f GB", float64(n)/1e9)
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return number(n) + " " + what + "s"
}

func percent(share float64) string { return fmt.Sprintf("%.0f %%", 100*share) }

func milliseconds(d time.Duration) float64 {
	return float64(d.Round(10*time.Microsecond)) / float64(time.Millisecond)
}
