package main

import (
	"fmt"
	"os"
)

// keepAwake keeps the cores out of their sleep states until stop is called, if the machine permits it. Between two
// commands a core has nothing to do for some microseconds, and waking it can take several times as
// long as the command, or not, depending on which cores the processes happen to share. PM QoS is
// what the kernel has for those who measure latencies: Documentation/power/pm_qos_interface.
func keepAwake() (stop func(), err error) {
	f, err := os.OpenFile("/dev/cpu_dma_latency", os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	if _, err := f.Write(make([]byte, 4)); err != nil { // 0 us, for as long as the file is open
		_ = f.Close()
		return nil, fmt.Errorf("cpu_dma_latency: %w", err)
	}
	return func() { _ = f.Close() }, nil
}
