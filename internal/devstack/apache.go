package devstack

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"time"
)

var (
	//go:embed kafka/pom.xml
	kafkaPom []byte
	//go:embed kafka/server.properties
	kafkaProperties []byte
	//go:embed kafka/log4j2.yaml
	kafkaLog4j []byte

	kafkaVersion = string(regexp.MustCompile(`<kafka.version>(.*?)<`).FindSubmatch(kafkaPom)[1])
)

// minJava is the oldest Java that runs the broker.
const minJava = 17

// apacheServer is a Kafka broker on a JVM.
type apacheServer struct {
	daemon
	java    string
	libs    string // the folder with the jars
	cluster string // its ID
}

// findApache returns a broker that can be started. The jars are fetched here, if needed.
func findApache(ctx context.Context, dir string, note func(string, ...any)) (server, error) {
	java, err := findJava(ctx)
	if err != nil {
		return nil, err
	}
	libs, err := kafkaJars(ctx, note)
	if err != nil {
		return nil, err
	}
	dir = filepath.Join(dir, "apache")
	if err := os.MkdirAll(filepath.Join(dir, "tmp"), 0o755); err != nil {
		return nil, err
	}
	for name, content := range map[string][]byte{"server.properties": kafkaProperties, "log4j2.yaml": kafkaLog4j} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			return nil, err
		}
	}
	s := &apacheServer{java: java, libs: libs, cluster: newClusterID()}
	s.daemon = daemon{
		dir:     dir,
		nPorts:  2,
		command: s.broker,
		ready: func(ctx context.Context, ports []int, _ int) error {
			// An open port does not mean that requests are answered, and somebody else's
			// broker may have taken it.
			md, err := kafkaMetadata(ctx, []string{addr(ports[0])})
			if err == nil && md.Cluster != s.cluster {
				err = fmt.Errorf("another cluster (%s) listens on %s", md.Cluster, addr(ports[0]))
			}
			return err
		},
		stops:    []stopSignal{{syscall.SIGTERM, 5 * time.Second}},
		orphaned: syscall.SIGKILL,
	}
	return s, nil
}

func (s *apacheServer) start(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(s.dir, "data")); err != nil {
		if _, err := output(ctx, s.jvm("kafka.tools.StorageTool", "format", "-t", s.cluster, "-c", "server.properties"), nil); err != nil {
			return err
		}
	}
	return s.daemon.start(ctx)
}

func (s *apacheServer) broker(ports []int) *exec.Cmd {
	broker, controller := addr(ports[0]), addr(ports[1])
	return s.jvm("kafka.Kafka", "server.properties",
		"--override", fmt.Sprintf("listeners=PLAINTEXT://%s,CONTROLLER://%s", broker, controller),
		"--override", "advertised.listeners=PLAINTEXT://"+broker,
		"--override", "controller.quorum.voters=1@"+controller)
}

func (s *apacheServer) jvm(args ...string) *exec.Cmd {
	cmd := exec.Command(s.java, append([]string{
		"-Xms128m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
		// All that it writes is in the stack's folder, even if it is killed.
		"-XX:-UsePerfData", "-Djava.io.tmpdir=tmp", "-Dkafka.logs.dir=.",
		"-Dlog4j2.configurationFile=log4j2.yaml",
		"-cp", filepath.Join(s.libs, "*"),
	}, args...)...)
	cmd.Dir = s.dir
	return cmd
}

func (s *apacheServer) info() Part {
	return Part{URL: addr(s.ports[0]), Rung: fmt.Sprintf("Apache Kafka %s on %s", kafkaVersion, s.java), PID: s.pid()}
}

// newClusterID returns a random ID in Kafka's form, 16 bytes in base64. Kafka's own never
// start with a dash, which its tools would take for an option.
func newClusterID() string {
	var id [16]byte
	rand.Read(id[:])
	id[0] &= 0x7f
	return base64.RawURLEncoding.EncodeToString(id[:])
}

var javaVersion = regexp.MustCompile(`version "(\d+)`)

// findJava returns the java on PATH if it is new enough.
func findJava(ctx context.Context) (string, error) {
	missing := func(cause error) error {
		return &missingError{fmt.Sprintf("install Java %d or later and Maven for an Apache Kafka broker "+
			"(Debian: apt-get install openjdk-17-jre-headless maven; macOS: brew install openjdk maven)", minJava), cause}
	}
	java, err := exec.LookPath("java")
	if err != nil {
		return "", missing(err)
	}
	out, err := output(ctx, exec.Command(java, "-version"), nil)
	if err != nil { // macOS has a java that only says that there is none
		return "", missing(err)
	}
	if m := javaVersion.FindStringSubmatch(out); m != nil {
		if n, err := strconv.Atoi(m[1]); err == nil && n < minJava {
			return "", missing(fmt.Errorf("%s is version %d", java, n))
		}
	}
	return java, nil
}

// kafkaJars returns the folder of the broker's classpath, from the cache or by Maven,
// which checks what it fetches. Another pom is another folder.
func kafkaJars(ctx context.Context, note func(string, ...any)) (string, error) {
	return cached(cacheDir(), fmt.Sprintf("kafka-%s-%.6x", kafkaVersion, sha256.Sum256(kafkaPom)), func(dir string) error {
		mvn, err := exec.LookPath("mvn")
		if err != nil {
			return &missingError{"install Maven (Debian: apt-get install maven; macOS: brew install maven), to have the jars of Apache Kafka fetched", err}
		}
		note("fetching the jars of Apache Kafka %s by Maven (45 MB)", kafkaVersion)
		pom := filepath.Join(dir, "pom.xml")
		if err := os.WriteFile(pom, kafkaPom, 0o644); err != nil {
			return err
		}
		cmd := exec.Command(mvn, "-q", "-B", "-f", pom, "dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory="+dir)
		cmd.Dir = dir
		repo := filepath.Join(dir, "repository")
		if home, err := os.UserHomeDir(); err != nil || !writable(home) {
			cmd.Args = append(cmd.Args, "-Dmaven.repo.local="+repo)
		}
		if _, err := output(ctx, cmd, nil); err != nil {
			return &missingError{"the jars of Apache Kafka are not here", err}
		}
		return errors.Join(os.RemoveAll(repo), os.Remove(pom))
	})
}

func writable(dir string) bool {
	f, err := os.MkdirTemp(dir, ".onceward-")
	if err != nil {
		return false
	}
	os.Remove(f)
	return true
}
