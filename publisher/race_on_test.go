//go:build race

package publisher

// raceEnabled: the race detector makes sync.Pool drop things at random.
const raceEnabled = true
