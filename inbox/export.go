package inbox

import (
	"archive/zip"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
)

// A Tool is a program that runs migrations from files.
type Tool int

const (
	// GolangMigrate reads two files for each version, such as 0001_inbox.up.sql and 0001_inbox.down.sql.
	GolangMigrate Tool = iota + 1
	// Goose reads one file for each version, such as 0001_inbox.sql, with both ways in it.
	Goose
	// Atlas reads one file for each version, such as 0001_inbox.sql, with the way up, and atlas.sum.
	Atlas
)

// Export returns the migrations as files for a tool, for those who do not call [Migrate].
// The tables have the name table, or [DefaultTable] if it is empty, and are made in the
// search path of the tool's connection. [Check] works with either way; use one of them
// only. Write the files to a directory with [os.CopyFS].
func Export(tool Tool, table string) (fs.FS, error) {
	n := names{table: cmp.Or(table, DefaultTable)}
	if err := errors.Join(n.validate()...); err != nil {
		return nil, fmt.Errorf("inbox: export: %w", err)
	}
	ms, err := migrations()
	if err != nil {
		return nil, fmt.Errorf("inbox: export: %w", err)
	}
	var files []exported
	for _, m := range ms {
		name, up, down := fmt.Sprintf("%04d_%s", m.version, m.name), n.migration(m.up), n.migration(m.down)
		switch tool {
		case GolangMigrate:
			files = append(files, exported{name + ".up.sql", up}, exported{name + ".down.sql", down})
		case Goose:
			files = append(files, exported{name + ".sql", "-- +goose Up\n" + up + "\n-- +goose Down\n" + down})
		case Atlas:
			files = append(files, exported{name + ".sql", up})
		default:
			return nil, fmt.Errorf("inbox: export: tool is %d, must be GolangMigrate, Goose or Atlas", tool)
		}
	}
	if tool == Atlas {
		files = append(files, atlasSum(files))
	}
	return archive(files)
}

type exported struct{ name, text string }

// atlasSum is the file by which Atlas finds out that migrations were changed by hand: a
// line for each file, with a hash of all up to it, and first a hash of these lines.
func atlasSum(files []exported) exported {
	sum := func(b []byte) string {
		h := sha256.Sum256(b)
		return base64.StdEncoding.EncodeToString(h[:])
	}
	var sofar, hashes, lines bytes.Buffer
	for _, f := range files {
		sofar.WriteString(f.name + f.text)
		h := sum(sofar.Bytes())
		hashes.WriteString(f.name + h)
		fmt.Fprintf(&lines, "%s h1:%s\n", f.name, h)
	}
	return exported{"atlas.sum", "h1:" + sum(hashes.Bytes()) + "\n" + lines.String()}
}

// archive makes a file system of files. A zip archive in memory is the one in the
// standard library that can be made from what is not on disk.
func archive(files []exported) (fs.FS, error) {
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, file := range files {
		f, err := w.Create(file.name)
		if err == nil {
			_, err = f.Write([]byte(file.text))
		}
		if err != nil {
			return nil, fmt.Errorf("inbox: export %s: %w", file.name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("inbox: export: %w", err)
	}
	return zip.NewReader(bytes.NewReader(b.Bytes()), int64(b.Len()))
}
