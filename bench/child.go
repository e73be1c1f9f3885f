package main

import (
	"bytes"
	"os/exec"
	"syscall"
)

// startChild starts a server that ends no later than this process. ended is closed when it has ended; until then only the server writes
// to said.
func startChild(cmd *exec.Cmd) (said *bytes.Buffer, ended <-chan struct{}, err error) {
	said = new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = said, said
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	dieWithParent(cmd.SysProcAttr)
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	end := make(chan struct{})
	go func() { // ends with the server
		defer close(end)
		_ = cmd.Wait()
	}()
	return said, end, nil
}
