//go:build unix && !linux

package devstack

import "syscall"

// sysProcAttr gives a process its own group and the user that it runs as (nil: ours).
// There is no signal on the parent's death here: killOrphans makes up for it.
func sysProcAttr(cred *syscall.Credential, _ syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: cred, Setpgid: true}
}
