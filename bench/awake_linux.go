package main

import (
	"fmt"
	"os"
)

// keepAwake keeps the cores out of their sleep states until stop is called, if the machine permits it. Between commands a core idles for
// microseconds. Waking it may take several times as long as a command, depending on which cores the processes happen to share. See
// Documentation/power/pm_qos_interface in the kernel's sources.
func keepAwake() (stop func(), err error) {
	f, err := os.OpenFile("/dev/cpu_dma_latency", os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	if _, err := f.Write(make([]byte, 4)); err != nil { // 0 us, while the file is open
		_ = f.Close()
		return nil, fmt.Errorf("cpu_dma_latency: %w", err)
	}
	return func() { _ = f.Close() }, nil
}
