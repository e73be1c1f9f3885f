package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// witness is memory that all worker processes of a cell share, outside of Redis. It sees whether two
// sections of one lock overlap, whatever the library says.
type witness struct{ mem []byte }

// slot is what the witness has for one lock. Each has a cache line of its own. The Java worker maps
// the same layout.
type slot struct {
	owner   atomic.Uint64 // who is inside and may not be with others, 0 for nobody
	count   uint64        // raised by load and store, so that overlapping sections lose updates
	readers atomic.Int64  // who are inside and may be with others
	reads   atomic.Uint64 // their sections
	waiting atomic.Int64  // how often a goroutine has said that it waits for a latch; negative when there are no more rounds
	_       [slotSize - 40]byte
}

const slotSize = 64

// createWitness makes the file of a witness for n locks.
func createWitness(dir string, n int) (path string, err error) {
	path = filepath.Join(dir, "witness")
	if err := os.WriteFile(path, make([]byte, n*slotSize), 0o600); err != nil {
		return "", fmt.Errorf("witness: %w", err)
	}
	return path, nil
}

// openWitness maps the file.
func openWitness(path string) (*witness, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("witness: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("witness: %w", err)
	}
	if info.Size() == 0 || info.Size()%slotSize != 0 {
		return nil, fmt.Errorf("witness: %s has %d bytes, want a multiple of %d", path, info.Size(), slotSize)
	}
	mem, err := syscall.Mmap(int(f.Fd()), 0, int(info.Size()), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("witness: map %s: %w", path, err)
	}
	return &witness{mem: mem}, nil
}

func (w *witness) slots() int { return len(w.mem) / slotSize }

// slot returns the i-th slot. A cell with fewer slots than names is a bug of the harness.
func (w *witness) slot(i int) *slot { return (*slot)(unsafe.Pointer(&w.mem[i*slotSize])) }

// counted is the sum of the counters: how many sections left a trace.
func (w *witness) counted() uint64 {
	var n uint64
	for i := range w.slots() {
		s := w.slot(i)
		n += s.count + s.reads.Load()
	}
	return n
}

func (w *witness) close() error {
	if w.mem == nil {
		return errors.New("witness: closed twice")
	}
	err := syscall.Munmap(w.mem)
	w.mem = nil
	return err
}

// visit is one pass through a section. The counter is read at the entry and written at the exit, so
// all of the section is open to a lost update.
type visit struct {
	slot   *slot
	id     uint64 // not 0, and no other visitor's
	shared bool
	seen   uint64
	owner  bool
}

// How many may be inside together, beside a number of permits.
const (
	alone    = 1
	together = math.MaxInt64
)

// enter reports false if somebody is inside already who may not be: there is room for so many, with nobody who is to be alone. Each says that
// it is there before it looks, so of two that may not meet one sees the other.
func (s *slot) enter(id uint64, room int64) (visit, bool) {
	if room > alone {
		n := s.readers.Add(1)
		return visit{slot: s, id: id, shared: true}, n <= room && s.owner.Load() == 0
	}
	owner := s.owner.CompareAndSwap(0, id)
	return visit{slot: s, id: id, seen: s.count, owner: owner}, owner && s.readers.Load() == 0
}

// leave reports false if somebody came in meanwhile who does not leave it to others to tell. One who found an owner at the
// entry leaves it there.
func (v visit) leave() bool {
	if v.shared {
		v.slot.reads.Add(1)
		v.slot.readers.Add(-1)
		return true
	}
	v.slot.count = v.seen + 1
	return !v.owner || v.slot.owner.CompareAndSwap(v.id, 0)
}
