package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// delayLine is a TCP proxy in front of Redis that adds delay but does not limit throughput: data is passed on a fixed time later, in order.
type delayLine struct {
	addr string

	target   string
	oneWay   time.Duration
	listener net.Listener
	wg       sync.WaitGroup // counts its goroutines

	mu     sync.Mutex // guards the following
	conns  []net.Conn
	closed bool
}

// startDelayLine adds rtt to each round trip to target, half of it each way.
func startDelayLine(target string, rtt time.Duration) (*delayLine, error) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("delay line: %w", err)
	}
	d := &delayLine{addr: ln.Addr().String(), target: target, oneWay: rtt / 2, listener: ln}
	d.wg.Go(d.accept) // ends with the listener
	return d, nil
}

// close cuts all connections and waits for the goroutines.
func (d *delayLine) close() {
	d.mu.Lock()
	d.closed = true
	_ = d.listener.Close()
	for _, c := range d.conns {
		_ = c.Close()
	}
	d.mu.Unlock()
	d.wg.Wait()
}

func (d *delayLine) accept() {
	for {
		near, err := d.listener.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp4", d.target)
		if err != nil {
			_ = near.Close()
			continue
		}
		if !d.keep(near, far) {
			return
		}
		d.wg.Go(func() { d.pipe(far, near) }) // these end with their connections
		d.wg.Go(func() { d.pipe(near, far) })
	}
}

// keep registers the connections for close; after close it closes them and reports false.
func (d *delayLine) keep(conns ...net.Conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		for _, c := range conns {
			_ = c.Close()
		}
		return false
	}
	d.conns = append(d.conns, conns...)
	return true
}

// chunk is the data of one read.
type chunk struct {
	bytes []byte
	due   time.Time
}

// pipe reads from src without waiting for dst; a second goroutine writes each chunk when it is due.
func (d *delayLine) pipe(dst, src net.Conn) {
	clock, err := newAlarm()
	if err != nil { // the connection shows it
		_, _ = src.Close(), dst.Close()
		return
	}
	// More chunks than are in flight in practice; a full channel only blocks the sender, as a full socket does.
	way := make(chan chunk, 16<<10)
	d.wg.Go(func() { // ends when way is closed
		defer dst.Close()
		defer clock.close()
		broken := false
		for c := range way {
			if broken {
				continue // drain, so that the reader does not block
			}
			err := clock.until(c.due)
			if err == nil {
				_, err = dst.Write(c.bytes)
			}
			if err != nil {
				broken = true
				_ = src.Close()
			}
		}
	})
	defer close(way)
	buf := make([]byte, 64<<10)
	for {
		n, err := src.Read(buf)
		if n > 0 {
			way <- chunk{append([]byte(nil), buf[:n]...), time.Now().Add(d.oneWay)}
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				_ = src.Close()
			}
			return
		}
	}
}
