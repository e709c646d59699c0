package contender

import (
	"bufio"
	"io"
)

// batchMean finds Postrider's histogram of events per batch in the text of /metrics.
func batchMean(r io.Reader) (float64, error) {
	const name = "postrider_publisher_batch_events"
	var sum, count float64
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if v, ok := number(lines.Text(), name+"_sum"); ok {
			sum = v
		}
		if v, ok := number(lines.Text(), name+"_count"); ok {
			count = v
		}
	}
	if err := lines.Err(); err != nil {
		return 0, err
	}
	if count == 0 {
		return 0, errNoBatches
	}
	return sum / count, nil
}
