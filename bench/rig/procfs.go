package rig

import (
	"bytes"
	"fmt"
	"os"
	"strconv"

	"github.com/postrider/postrider/bench/result"
)

// Sample is what /proc tells of a process at one moment.
type Sample struct {
	CPU     result.CPU // since it began, in steps of 10 ms
	RSS     int64      // bytes
	PeakRSS int64      // bytes
}

// clockTicks is USER_HZ, which Linux has fixed at 100.
const clockTicks = 100

// Read samples a process; an error means that it is gone.
func Read(pid int) (Sample, error) {
	cpu, err := ReadCPU(pid)
	if err != nil {
		return Sample{}, err
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return Sample{}, err
	}
	return Sample{CPU: cpu, RSS: kilobytes(status, "VmRSS:"), PeakRSS: kilobytes(status, "VmHWM:")}, nil
}

// ReadCPU is the CPU time that a process has used, without its children's.
func ReadCPU(pid int) (result.CPU, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return result.CPU{}, err
	}
	// The second field is the name in brackets and may hold blanks.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 13 {
		return result.CPU{}, fmt.Errorf("/proc/%d/stat is too short", pid)
	}
	user, errUser := strconv.ParseFloat(string(fields[11]), 64)
	system, errSystem := strconv.ParseFloat(string(fields[12]), 64)
	if errUser != nil || errSystem != nil {
		return result.CPU{}, fmt.Errorf("/proc/%d/stat is not as expected", pid)
	}
	return result.CPU{User: user / clockTicks, System: system / clockTicks}, nil
}

// kilobytes finds a line such as "VmHWM:   1234 kB" and gives bytes; a zombie has none.
func kilobytes(status []byte, name string) int64 {
	_, rest, found := bytes.Cut(status, []byte(name))
	if !found {
		return 0
	}
	fields := bytes.Fields(rest)
	if len(fields) == 0 {
		return 0
	}
	n, err := strconv.ParseInt(string(fields[0]), 10, 64)
	if err != nil {
		return 0
	}
	return n * 1024
}
