package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of times in /proc, the same on every Linux.
const tick = 10 * time.Millisecond

// usage is processor time used so far, by whom; zero where that cannot be known.
type usage struct{ client, service, database time.Duration }

func (u usage) since(before usage) usage {
	return usage{client: u.client - before.client, service: u.service - before.service, database: u.database - before.database}
}

func (u usage) plus(more usage) usage {
	return usage{client: u.client + more.client, service: u.service + more.service, database: u.database + more.database}
}

// cores is a usage as cores kept busy over a time.
func (u usage) cores(over time.Duration) string {
	// A process that ended in between is missed until its parent has noticed.
	share := func(d time.Duration) float64 { return max(0, d.Seconds()/over.Seconds()) }
	return fmt.Sprintf("cores: client %.2f, service %.2f, PostgreSQL %.2f", share(u.client), share(u.service), share(u.database))
}

// procStat are the fields of /proc/PID/stat that matter here.
type procStat struct {
	command string
	parent  int
	// own is the time of the process, children that of those that have ended.
	own, children time.Duration
}

func readProcStat(pid int) (procStat, bool) {
	content, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return procStat{}, false
	}
	// The command's name stands in parentheses and may contain some itself.
	text := string(content)
	from, to := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	fields := strings.Fields(text[to+1:])
	if len(fields) < 15 {
		return procStat{}, false
	}
	number := func(i int) int {
		n, _ := strconv.Atoi(fields[i]) // the kernel writes numbers
		return n
	}
	return procStat{
		command:  text[from+1 : to],
		parent:   number(1),
		own:      time.Duration(number(11)+number(12)) * tick,
		children: time.Duration(number(13)+number(14)) * tick,
	}, true
}

// PostmasterOf finds the main process of a PostgreSQL server by one of its backends; 0 where the
// server is not on this machine or the system does not tell.
func PostmasterOf(backend int) int {
	stat, ok := readProcStat(backend)
	if !ok || stat.command != "postgres" {
		return 0
	}
	if parent, ok := readProcStat(stat.parent); !ok || parent.command != "postgres" {
		return 0
	}
	return stat.parent
}

// processTime is the processor time of one process; zero where it cannot be known.
func processTime(pid int) time.Duration {
	stat, _ := readProcStat(pid)
	return stat.own
}

// familyTime is the processor time of a process and its children, past and present.
func familyTime(parent int) time.Duration {
	stat, ok := readProcStat(parent)
	if !ok {
		return 0
	}
	sum := stat.own + stat.children
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if child, ok := readProcStat(pid); ok && child.parent == parent {
			sum += child.own
		}
	}
	return sum
}

// residentMiB is the memory of a process that stands in RAM; false where it cannot be known.
func residentMiB(pid int) (float64, bool) {
	content, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(content)) {
		if rest, is := strings.CutPrefix(line, "VmRSS:"); is {
			kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64)
			return kib / 1024, err == nil
		}
	}
	return 0, false
}
