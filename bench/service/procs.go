package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// What a process used is read from /proc, so the benchmark needs Linux for that.

// tick is the unit of times in /proc/<pid>/stat: USER_HZ, which is 100 on every Linux that Go runs on.
const tick = 10 * time.Millisecond

// usage is processor time by process: what each had used when it was read, or what it used between two readings.
type usage struct {
	Service, Provider, Postgres, Generator time.Duration
}

func (u usage) minus(earlier usage) usage {
	return usage{u.Service - earlier.Service, u.Provider - earlier.Provider, u.Postgres - earlier.Postgres, u.Generator - earlier.Generator}
}

// used reads the processor time of everything that takes part: these instances of the service, the provider, PostgreSQL with
// all its children, and this process, which makes the load.
func (w *world) used(service ...*process) (usage, error) {
	var u usage
	for _, p := range service {
		s, err := readStat(p.cmd.Process.Pid)
		if err != nil {
			return u, err
		}
		u.Service += s.own
	}
	provider, err := readStat(w.provider.cmd.Process.Pid)
	if err != nil {
		return u, err
	}
	u.Provider = provider.own
	if u.Postgres, err = family(w.server.PID()); err != nil {
		return u, err
	}
	var self syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &self); err != nil {
		return u, err
	}
	u.Generator = time.Duration(self.Utime.Nano() + self.Stime.Nano())
	return u, nil
}

// stat is a line of /proc/<pid>/stat.
type stat struct {
	parent   int
	own      time.Duration // user and system
	children time.Duration // of children that have ended
}

func readStat(pid int) (stat, error) {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, fmt.Errorf("read processor time: %w", err)
	}
	return parseStat(string(line))
}

// parseStat reads the fields that proc(5) numbers 4 and 14 to 17. The name in the second field may hold anything.
func parseStat(line string) (stat, error) {
	fields := strings.Fields(line[strings.LastIndexByte(line, ')')+1:])
	if len(fields) < 15 {
		return stat{}, errors.New("read processor time: /proc/<pid>/stat is not as expected")
	}
	var n [5]int
	for i, at := range []int{1, 11, 12, 13, 14} {
		var err error
		if n[i], err = strconv.Atoi(fields[at]); err != nil {
			return stat{}, fmt.Errorf("read processor time: %w", err)
		}
	}
	return stat{n[0], time.Duration(n[1]+n[2]) * tick, time.Duration(n[3]+n[4]) * tick}, nil
}

// family sums a process and its children, those that have ended included. A child that ends while it is looked at would be
// counted twice, so that look does not count.
func family(pid int) (time.Duration, error) {
	for range 100 {
		before, err := readStat(pid)
		if err != nil {
			return 0, err
		}
		living, err := childrenOf(pid)
		if err != nil {
			return 0, err
		}
		if after, err := readStat(pid); err != nil || after.children == before.children {
			return after.own + after.children + living, err
		}
	}
	return 0, errors.New("read processor time: its children come and go too fast")
}

func childrenOf(pid int) (sum time.Duration, err error) {
	all, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, err
	}
	for _, name := range all {
		line, err := os.ReadFile(name)
		if err != nil {
			continue // ended just now; its parent has its time
		}
		s, err := parseStat(string(line))
		if err != nil {
			return 0, err
		}
		if s.parent == pid {
			sum += s.own
		}
	}
	return sum, nil
}

// programsOf is the directory of the program that a process runs.
func programsOf(pid int) (string, error) {
	program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return "", fmt.Errorf("find the server's programs: %w", err)
	}
	return filepath.Dir(program), nil
}

// memory is resident memory in bytes: now, and the most there ever was.
type memory struct{ Now, Peak int64 }

func (p *process) memory() (memory, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return memory{}, fmt.Errorf("read memory: %w", err)
	}
	now, err1 := kilobytes(status, "VmRSS")
	peak, err2 := kilobytes(status, "VmHWM")
	return memory{now, peak}, errors.Join(err1, err2)
}

func kilobytes(status []byte, name string) (int64, error) {
	m := regexp.MustCompile(`(?m)^` + name + `:\s+(\d+) kB$`).FindSubmatch(status)
	if m == nil {
		return 0, fmt.Errorf("read memory: /proc/<pid>/status has no %s", name)
	}
	n, err := strconv.ParseInt(string(bytes.TrimSpace(m[1])), 10, 64)
	return n << 10, err
}

// heap is what a process has ever allocated, by its own metrics.
type heap struct{ Objects, Bytes float64 }

func (p *process) heap(ctx context.Context) (heap, error) {
	text, err := get(ctx, "http://"+p.admin+"/metrics")
	if err != nil {
		return heap{}, fmt.Errorf("read allocations: %w", err)
	}
	objects, err1 := metric(text, "go_memstats_mallocs_total")
	bytes, err2 := metric(text, "go_memstats_alloc_bytes_total")
	return heap{objects, bytes}, errors.Join(err1, err2)
}

func metric(text, name string) (float64, error) {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("metric %s is not there", name)
}
