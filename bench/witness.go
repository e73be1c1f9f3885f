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

// witness is memory shared by a cell's workers, outside Redis. It detects overlapping sections of a lock independently of the library.
type witness struct{ mem []byte }

// slot is the witness's record of one lock, on its own cache line. The Java worker maps the same layout.
type slot struct {
	owner   atomic.Uint64 // the exclusive visitor inside, 0 for none
	count   uint64        // raised by load and store, so that overlapping sections lose updates
	readers atomic.Int64  // shared visitors inside
	reads   atomic.Uint64 // their sections
	waiting atomic.Int64  // waits for a latch so far; negative after the last round
	_       [slotSize - 40]byte
}

const slotSize = 64

// createWitness creates a witness file for n locks.
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

// slot returns the i-th slot. Fewer slots than names would be a bug of the harness.
func (w *witness) slot(i int) *slot { return (*slot)(unsafe.Pointer(&w.mem[i*slotSize])) }

// counted returns the sum of the counters: the sections that left a trace.
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

// visit is one pass through a section. It reads the counter at entry and writes it at exit, so that an overlap anywhere in between loses an
// update.
type visit struct {
	slot   *slot
	id     uint64 // not 0, and unique among visitors
	shared bool
	seen   uint64
	owner  bool
}

// The number allowed inside together, if not the number of permits.
const (
	alone    = 1
	together = math.MaxInt64
)

// enter reports false if the section is occupied: no room for another shared visitor, or exclusive use on either side. Each visitor
// registers before it checks, so of two conflicting visitors at least one sees the other.
func (s *slot) enter(id uint64, room int64) (visit, bool) {
	if room > alone {
		n := s.readers.Add(1)
		return visit{slot: s, id: id, shared: true}, n <= room && s.owner.Load() == 0
	}
	owner := s.owner.CompareAndSwap(0, id)
	return visit{slot: s, id: id, seen: s.count, owner: owner}, owner && s.readers.Load() == 0
}

// leave reports false if a conflicting visitor came in meanwhile that did not report it. A visitor that found an owner at entry leaves it
// in place.
func (v visit) leave() bool {
	if v.shared {
		v.slot.reads.Add(1)
		v.slot.readers.Add(-1)
		return true
	}
	v.slot.count = v.seen + 1
	return !v.owner || v.slot.owner.CompareAndSwap(v.id, 0)
}
