package program

import (
	"errors"
	"os"
	"runtime"
	"runtime/pprof"
)

// Profile starts the profiles that are wanted.
func (f *Flags) Profile() (stop func() error, err error) {
	var files []*os.File
	create := func(name string) (file *os.File) {
		if name != "" && err == nil {
			if file, err = os.Create(name); err == nil {
				files = append(files, file)
			}
		}
		return file
	}
	cpu, mem := create(f.cpu), create(f.mem)
	if err == nil && cpu != nil {
		err = pprof.StartCPUProfile(cpu)
	}
	if mem != nil {
		runtime.MemProfileRate = 4096
	}
	return func() (err error) {
		if cpu != nil {
			pprof.StopCPUProfile()
		}
		if mem != nil {
			err = pprof.Lookup("allocs").WriteTo(mem, 0)
		}
		for _, f := range files {
			err = errors.Join(err, f.Close())
		}
		return err
	}, err
}
