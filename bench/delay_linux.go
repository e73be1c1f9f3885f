package main

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// alarm wakes one goroutine at exact times. It is a kernel timer that Go polls like a connection. In an idle process Go's own timers are up
// to a millisecond late, which would double a delay of half a millisecond. A goroutine that sleeps in the kernel would keep others from
// running.
type alarm struct{ file *os.File }

func newAlarm() (*alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("timerfd: %w", err)
	}
	return &alarm{file: os.NewFile(uintptr(fd), "timer")}, nil
}

// until returns at t.
func (a *alarm) until(t time.Time) error {
	left := time.Until(t)
	if left <= 0 {
		return nil
	}
	conn, err := a.file.SyscallConn()
	if err != nil {
		return err
	}
	var setErr error
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(left.Nanoseconds())}
	if err := conn.Control(func(fd uintptr) { setErr = unix.TimerfdSettime(int(fd), 0, &spec, nil) }); err != nil {
		return err
	}
	if setErr != nil {
		return setErr
	}
	var expired [8]byte
	_, err = a.file.Read(expired[:])
	return err
}

func (a *alarm) close() { _ = a.file.Close() }
