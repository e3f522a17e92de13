package devstack

import "syscall"

// sysProcAttr gives a process its own group, the user that it runs as (nil: ours), and
// the signal that the kernel sends it when the thread that started it ends.
func sysProcAttr(cred *syscall.Credential, orphaned syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: cred, Setpgid: true, Pdeathsig: orphaned}
}
