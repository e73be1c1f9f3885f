package rlocktest

import (
	"regexp"
	"runtime"
)

// bubble is the testing/synctest bubble of a goroutine, as the runtime names it; "" outside of all.
type bubble string

// The runtime names the bubble only in a goroutine's stack trace, as in "goroutine 7 [running, synctest bubble 1]:".
var inBubble = regexp.MustCompile(`^goroutine \d+ \[[^\]]*(synctest bubble \d+)`)

// currentBubble returns the bubble of the calling goroutine.
func currentBubble() bubble {
	var header [128]byte
	if m := inBubble.FindSubmatch(header[:runtime.Stack(header[:], false)]); m != nil {
		return bubble(m[1])
	}
	return ""
}

// check panics in a bubble if b is none. Otherwise the runtime would end the program, somewhere in a library that meets a channel or a timer
// of the bubble. The opposite, a Client of a bubble that is used outside of it, cannot be caught before the runtime does.
func (b bubble) check() {
	if b == "" && currentBubble() != "" {
		panic("rlocktest: this Client was made outside of the synctest bubble that uses it, so its clock is another one: " +
			"call rlocktest.New inside of the function given to synctest.Test, with that function's t")
	}
}
