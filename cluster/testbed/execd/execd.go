// execd of the test bed: a stand-in for OpenSandbox's in-sandbox daemon, and not upstream's.
//
// Upstream publishes its execd as an image only and builds it with a newer Go than Debian has. This one speaks the part of its
// HTTP that the SDK and rayroll use (port 44772): /ping, /proxy/PORT/..., /command, /files/..., /directories, and /pty in pipe
// mode with its WebSocket. Whatever else is asked for is a 404. Written from the protocol's description; no line is upstream's.
package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	port       = "44772"
	pingEvery  = 3 * time.Second
	chunkBytes = 32 << 10
)

func main() {
	signal.Ignore(syscall.SIGPIPE)
	server := &http.Server{Addr: ":" + port, Handler: http.HandlerFunc(route)}
	if err := server.ListenAndServe(); err != nil {
		fmt.Fprintln(os.Stderr, "execd:", err)
		os.Exit(1)
	}
}

func route(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Path
	if strings.HasPrefix(path, "/proxy/") {
		proxy(w, r)
		return
	}
	words := strings.Split(strings.Trim(path, "/"), "/")
	switch on := r.Method + " " + words[0]; {
	case on == "GET ping":
		w.WriteHeader(http.StatusOK)
	case on == "POST command" && len(words) == 1:
		runCommand(w, r)
	case on == "DELETE command" && len(words) == 1:
		interruptCommand(w, r.URL.Query().Get("id"))
	case on == "POST command" && len(words) == 3 && words[2] == "interrupt":
		interruptCommand(w, words[1])
	case on == "GET command" && len(words) == 3 && words[1] == "status":
		commandStatus(w, words[2])
	case on == "GET command" && len(words) == 3 && words[2] == "logs":
		commandLogs(w, r, words[1])
	case on == "POST files" && path == "/files/upload":
		upload(w, r)
	case on == "GET files" && path == "/files/download":
		http.ServeFile(w, r, r.URL.Query().Get("path"))
	case on == "GET files" && path == "/files/info":
		fileInfo(w, r)
	case on == "DELETE files" || on == "DELETE directories":
		remove(w, r, words[0] == "directories")
	case on == "POST directories" && len(words) == 1:
		makeDirectories(w, r)
	case on == "POST pty" && len(words) == 1:
		createSession(w, r)
	case words[0] == "pty" && len(words) >= 2:
		onSession(w, r, words[1], len(words) == 3 && words[2] == "ws")
	default:
		fail(w, http.StatusNotFound, "NOT_FOUND", "this stand-in does not have it: "+r.Method+" "+path)
	}
}

func fail(w http.ResponseWriter, status int, code, message string) {
	answer(w, status, map[string]string{"code": code, "message": message})
}

func answer(w http.ResponseWriter, status int, body any) {
	data, _ := json.Marshal(body)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(data)
}

func newID() string {
	raw := make([]byte, 16)
	_, _ = rand.Read(raw)
	return hex.EncodeToString(raw)
}

// --- /proxy/PORT/...: another port of the sandbox; the one of execd itself is served at once ---

func proxy(w http.ResponseWriter, r *http.Request) {
	target, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/proxy/"), "/")
	if target == port {
		r.URL.Path = "/" + rest
		route(w, r)
		return
	}
	if _, err := strconv.ParseUint(target, 10, 16); err != nil {
		http.Error(w, "port is required", http.StatusBadRequest)
		return
	}
	r.URL.Path, r.URL.RawPath = "/"+rest, ""
	httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "127.0.0.1:" + target}).ServeHTTP(w, r)
}

// --- commands ---

type command struct {
	mu       sync.Mutex
	id       string
	pgid     int
	running  bool
	exit     int
	problem  string
	started  time.Time
	finished time.Time
	output   bytes.Buffer
}

var (
	commandsMu sync.Mutex
	commands   = map[string]*command{}
)

type commandRequest struct {
	Command    string            `json:"command"`
	Argv       []string          `json:"argv"`
	Cwd        string            `json:"cwd"`
	Background bool              `json:"background"`
	TimeoutMs  int64             `json:"timeout"`
	UID        *uint32           `json:"uid"`
	GID        *uint32           `json:"gid"`
	Envs       map[string]string `json:"envs"`
}

func shell() string {
	for _, path := range []string{"/bin/bash", "/usr/bin/bash", "/bin/sh"} {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return "sh"
}

func runCommand(w http.ResponseWriter, r *http.Request) {
	var wanted commandRequest
	if err := json.NewDecoder(r.Body).Decode(&wanted); err != nil || wanted.Command == "" && len(wanted.Argv) == 0 {
		fail(w, http.StatusBadRequest, "INVALID_REQUEST", "command or argv is required")
		return
	}
	argv := wanted.Argv
	if len(argv) == 0 {
		argv = []string{shell(), "-c", wanted.Command}
	}
	process := exec.Command(argv[0], argv[1:]...)
	process.Dir, process.Env = wanted.Cwd, os.Environ()
	for name, value := range wanted.Envs {
		process.Env = append(process.Env, name+"="+value)
	}
	process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if wanted.UID != nil {
		credential := &syscall.Credential{Uid: *wanted.UID, Gid: *wanted.UID}
		if wanted.GID != nil {
			credential.Gid = *wanted.GID
		}
		process.SysProcAttr.Credential = credential
	}
	c := &command{id: newID(), started: time.Now()}
	events := &eventStream{w: w}
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	var out, err io.Writer = streamOf{c, events, "stdout"}, streamOf{c, events, "stderr"}
	if wanted.Background {
		out, err = streamOf{c, nil, ""}, streamOf{c, nil, ""}
	}
	process.Stdout, process.Stderr = out, err
	events.send(map[string]any{"type": "init", "text": c.id})
	if problem := process.Start(); problem != nil {
		events.end(127, problem.Error())
		return
	}
	c.running, c.pgid = true, process.Process.Pid
	commandsMu.Lock()
	commands[c.id] = c
	commandsMu.Unlock()
	var limit *time.Timer
	if wanted.TimeoutMs > 0 {
		limit = time.AfterFunc(time.Duration(wanted.TimeoutMs)*time.Millisecond, func() { _ = syscall.Kill(-c.pgid, syscall.SIGKILL) })
	}
	wait := func() {
		c.ended(process.Wait())
		if limit != nil {
			limit.Stop()
		}
	}
	if wanted.Background {
		go wait()
		events.complete(0)
		return
	}
	done := make(chan struct{})
	go func() { wait(); close(done) }()
	ping := time.NewTicker(pingEvery)
	defer ping.Stop()
	for {
		select {
		case <-done:
			if c.exit != 0 {
				events.end(c.exit, c.problem)
			} else {
				events.complete(time.Since(c.started))
			}
			return
		case <-ping.C:
			events.send(map[string]any{"type": "ping", "text": "pong"})
		case <-r.Context().Done(): // whoever asked has hung up
			_ = syscall.Kill(-c.pgid, syscall.SIGKILL)
			<-done
			return
		}
	}
}

func (c *command) ended(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running, c.finished = false, time.Now()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		c.exit, c.problem = exit.ExitCode(), exit.Error()
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			c.exit = 128 + int(status.Signal())
		}
	case err != nil:
		c.exit, c.problem = 1, err.Error()
	}
}

type streamOf struct {
	c      *command
	events *eventStream
	kind   string
}

func (s streamOf) Write(data []byte) (int, error) {
	if s.events != nil {
		s.events.send(map[string]any{"type": s.kind, "text": string(data)})
		return len(data), nil
	}
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	return s.c.output.Write(data)
}

type eventStream struct {
	mu sync.Mutex
	w  http.ResponseWriter
}

func (e *eventStream) send(event map[string]any) {
	event["timestamp"] = time.Now().UnixMilli()
	data, _ := json.Marshal(event)
	e.mu.Lock()
	defer e.mu.Unlock()
	_, _ = e.w.Write(append(data, '\n', '\n')) // in one write: separate ones invite Nagle's 40 ms
	e.w.(http.Flusher).Flush()
}

func (e *eventStream) complete(took time.Duration) {
	e.send(map[string]any{"type": "execution_complete", "execution_time": took.Milliseconds()})
}

func (e *eventStream) end(exit int, problem string) {
	e.send(map[string]any{"type": "error", "error": map[string]any{
		"ename": "CommandExecError", "evalue": strconv.Itoa(exit), "traceback": []string{problem}}})
}

func commandOf(w http.ResponseWriter, id string) *command {
	commandsMu.Lock()
	defer commandsMu.Unlock()
	if commands[id] == nil {
		fail(w, http.StatusNotFound, "COMMAND_NOT_FOUND", "no such command: "+id)
	}
	return commands[id]
}

func interruptCommand(w http.ResponseWriter, id string) {
	if c := commandOf(w, id); c != nil {
		_ = syscall.Kill(-c.pgid, syscall.SIGINT)
		w.WriteHeader(http.StatusOK)
	}
}

func commandStatus(w http.ResponseWriter, id string) {
	c := commandOf(w, id)
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	status := map[string]any{"id": c.id, "running": c.running, "started_at": c.started.UTC().Format(time.RFC3339Nano)}
	if !c.running {
		status["exit_code"], status["error"] = c.exit, c.problem
		status["finished_at"] = c.finished.UTC().Format(time.RFC3339Nano)
	}
	answer(w, http.StatusOK, status)
}

func commandLogs(w http.ResponseWriter, r *http.Request, id string) {
	c := commandOf(w, id)
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	cursor, _ := strconv.Atoi(r.URL.Query().Get("cursor"))
	if cursor < 0 || cursor > c.output.Len() {
		cursor = c.output.Len()
	}
	w.Header().Set("EXECD-COMMANDS-TAIL-CURSOR", strconv.Itoa(c.output.Len()))
	w.Header().Set("Content-Type", "text/plain")
	_, _ = w.Write(c.output.Bytes()[cursor:])
}

// --- files ---

type metadata struct {
	Path  string `json:"path"`
	Owner string `json:"owner"`
	Group string `json:"group"`
	Mode  int    `json:"mode"` // decimal digits that are meant as octal: 755
}

func (m metadata) mode() (os.FileMode, bool) {
	mode, err := strconv.ParseUint(strconv.Itoa(m.Mode), 8, 32)
	return os.FileMode(mode), err == nil && m.Mode != 0
}

func (m metadata) apply() error {
	if mode, ok := m.mode(); ok {
		if err := os.Chmod(m.Path, mode); err != nil {
			return err
		}
	}
	uid, uidErr := strconv.Atoi(m.Owner)
	gid, gidErr := strconv.Atoi(m.Group)
	if uidErr != nil {
		uid = -1
	}
	if gidErr != nil {
		gid = -1
	}
	if uid < 0 && gid < 0 {
		return nil
	}
	return os.Chown(m.Path, uid, gid)
}

// upload takes pairs of parts: `metadata`, then the `file` that it is about.
func upload(w http.ResponseWriter, r *http.Request) {
	parts, err := r.MultipartReader()
	var about metadata
	for err == nil {
		part, next := parts.NextPart()
		if next == io.EOF {
			w.WriteHeader(http.StatusOK)
			return
		}
		if err = next; err != nil {
			break
		}
		if part.FormName() == "metadata" {
			err = json.NewDecoder(part).Decode(&about)
		} else if about.Path == "" {
			err = errors.New("metadata comes before its file")
		} else {
			err = write(about, part)
			about = metadata{}
		}
	}
	fail(w, http.StatusBadRequest, "INVALID_FILE", err.Error())
}

func write(about metadata, content io.Reader) error {
	if err := os.MkdirAll(filepath.Dir(about.Path), 0o755); err != nil {
		return err
	}
	file, err := os.OpenFile(about.Path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	if closed := file.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = about.apply()
	}
	return err
}

func fileInfo(w http.ResponseWriter, r *http.Request) {
	found := map[string]any{}
	for _, path := range r.URL.Query()["path"] {
		info, err := os.Stat(path)
		if err != nil {
			fail(w, http.StatusNotFound, "FILE_NOT_FOUND", err.Error())
			return
		}
		mode, _ := strconv.Atoi(strconv.FormatUint(uint64(info.Mode().Perm()), 8))
		stat := info.Sys().(*syscall.Stat_t)
		at := info.ModTime().UTC().Format(time.RFC3339Nano)
		found[path] = map[string]any{
			"path": path, "size": info.Size(), "modified_at": at, "created_at": at, "mode": mode,
			"owner": strconv.Itoa(int(stat.Uid)), "group": strconv.Itoa(int(stat.Gid)),
		}
	}
	answer(w, http.StatusOK, found)
}

func remove(w http.ResponseWriter, r *http.Request, trees bool) {
	for _, path := range r.URL.Query()["path"] {
		err := os.Remove
		if trees {
			err = os.RemoveAll
		}
		if problem := err(path); problem != nil {
			fail(w, http.StatusInternalServerError, "RUNTIME_ERROR", problem.Error())
			return
		}
	}
	w.WriteHeader(http.StatusOK)
}

func makeDirectories(w http.ResponseWriter, r *http.Request) {
	var wanted map[string]metadata
	err := json.NewDecoder(r.Body).Decode(&wanted)
	for path, about := range wanted {
		about.Path = path
		if err == nil {
			err = os.MkdirAll(path, 0o755)
		}
		if err == nil {
			err = about.apply()
		}
	}
	if err != nil {
		fail(w, http.StatusBadRequest, "RUNTIME_ERROR", err.Error())
		return
	}
	w.WriteHeader(http.StatusOK)
}

// --- sessions: a process whose streams a client holds by WebSocket, and may let go of and take again ---

const replayBytes = 1 << 20

type session struct {
	mu     sync.Mutex
	id     string
	cwd    string
	script string
	stdin  io.WriteCloser
	pid    int
	done   chan struct{}
	exit   int
	held   bool
	evict  func()
	sinks  [3]chan<- []byte // by channel byte; nil: nobody is attached
	gone   <-chan struct{}  // closed when whoever is attached goes
	replay []byte
	total  int64 // bytes printed so far; replay ends there
}

var (
	sessionsMu sync.Mutex
	sessions   = map[string]*session{}
)

func createSession(w http.ResponseWriter, r *http.Request) {
	var wanted struct {
		Cwd     string `json:"cwd"`
		Command string `json:"command"`
	}
	if err := json.NewDecoder(r.Body).Decode(&wanted); err != nil && err != io.EOF {
		fail(w, http.StatusBadRequest, "INVALID_REQUEST", err.Error())
		return
	}
	s := &session{id: newID(), cwd: wanted.Cwd, script: wanted.Command}
	sessionsMu.Lock()
	sessions[s.id] = s
	sessionsMu.Unlock()
	answer(w, http.StatusCreated, map[string]string{"session_id": s.id})
}

func onSession(w http.ResponseWriter, r *http.Request, id string, ws bool) {
	sessionsMu.Lock()
	s := sessions[id]
	if s != nil && r.Method == http.MethodDelete {
		delete(sessions, id)
	}
	sessionsMu.Unlock()
	switch {
	case s == nil:
		fail(w, http.StatusNotFound, "CONTEXT_NOT_FOUND", "pty session "+id+" not found")
	case ws:
		s.attach(w, r)
	case r.Method == http.MethodDelete:
		s.mu.Lock()
		if s.pid != 0 {
			_ = syscall.Kill(-s.pid, syscall.SIGKILL)
		}
		s.mu.Unlock()
		w.WriteHeader(http.StatusOK)
	default:
		s.mu.Lock()
		defer s.mu.Unlock()
		answer(w, http.StatusOK, map[string]any{"session_id": id, "running": s.pid != 0, "output_offset": s.total})
	}
}

// start is called with the lock held. A session whose process has ended starts it again, as upstream does.
func (s *session) start() error {
	words := []string{}
	if s.script != "" {
		words = []string{"-c", s.script}
	}
	process := exec.Command(shell(), words...)
	process.Dir = s.cwd
	process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := process.StdinPipe()
	if err != nil {
		return err
	}
	stdout, stdoutW, err := os.Pipe()
	if err != nil {
		return err
	}
	stderr, stderrW, err := os.Pipe()
	if err != nil {
		return err
	}
	process.Stdout, process.Stderr = stdoutW, stderrW
	err = process.Start()
	_ = stdoutW.Close()
	_ = stderrW.Close()
	if err != nil {
		return err
	}
	s.stdin, s.pid, s.done = stdin, process.Process.Pid, make(chan struct{})
	go s.pump(1, stdout)
	go s.pump(2, stderr)
	go func() {
		state, _ := process.Process.Wait() // not Wait of exec: what it left behind may hold its streams
		s.mu.Lock()
		s.pid, s.exit = 0, state.ExitCode()
		close(s.done)
		s.mu.Unlock()
	}()
	return nil
}

func (s *session) pump(channel int, from *os.File) {
	defer from.Close()
	for {
		chunk := make([]byte, chunkBytes)
		n, err := from.Read(chunk)
		if n > 0 {
			s.mu.Lock()
			s.replay = append(s.replay, chunk[:n]...)
			if len(s.replay) >= 2*replayBytes { // not at every chunk: it would cost more than all the rest
				s.replay = append([]byte(nil), s.replay[len(s.replay)-replayBytes:]...)
			}
			s.total += int64(n)
			sink, gone := s.sinks[channel], s.gone
			s.mu.Unlock()
			if sink != nil {
				select {
				case sink <- chunk[:n]:
				case <-gone:
				}
			}
		}
		if err != nil {
			return
		}
	}
}

func (s *session) attach(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	if query.Get("pty") != "0" {
		fail(w, http.StatusBadRequest, "INVALID_REQUEST", "this stand-in has pipes only: pty=0")
		return
	}
	deadline := time.Now().Add(5 * time.Second)
	for {
		s.mu.Lock()
		if !s.held {
			s.held = true
			s.mu.Unlock()
			break
		}
		evict := s.evict
		s.mu.Unlock()
		if query.Get("takeover") != "1" || time.Now().After(deadline) {
			fail(w, http.StatusConflict, "ALREADY_CONNECTED", "another client is connected")
			return
		}
		if evict != nil {
			evict()
		}
		time.Sleep(10 * time.Millisecond)
	}
	conn, err := upgrade(w, r)
	if err != nil {
		s.release()
		return
	}
	s.serve(conn, query.Get("since"))
}

func (s *session) release() {
	s.mu.Lock()
	s.held, s.evict = false, nil
	s.mu.Unlock()
}

func (s *session) serve(conn *socket, since string) {
	ctx, cancel := context.WithCancel(context.Background())
	defer s.release()
	defer conn.Close()
	stdout, stderr := make(chan []byte), make(chan []byte)
	s.mu.Lock()
	if s.pid == 0 {
		if err := s.start(); err != nil {
			s.mu.Unlock()
			cancel()
			conn.json(map[string]any{"type": "error", "code": "START_FAILED", "error": err.Error()})
			return
		}
	}
	offset, _ := strconv.ParseInt(since, 10, 64)
	begin := s.total - int64(len(s.replay))
	if offset < begin {
		offset = begin
	}
	var missed []byte
	if offset < s.total {
		missed = append(missed, s.replay[offset-begin:]...)
	}
	s.sinks[1], s.sinks[2], s.gone = stdout, stderr, ctx.Done()
	s.evict = func() { cancel(); conn.Close() }
	done := s.done
	s.mu.Unlock()
	defer func() {
		cancel()
		s.mu.Lock()
		s.sinks[1], s.sinks[2] = nil, nil
		s.mu.Unlock()
	}()
	if len(missed) > 0 {
		conn.send(opBinary, append(append([]byte{3}, bigEndian(uint64(offset))...), missed...))
	}
	conn.json(map[string]any{"type": "connected", "session_id": s.id, "mode": "pipe"})
	go s.output(conn, stdout, stderr, done, ctx, cancel)
	for {
		op, data, err := conn.read()
		if err != nil {
			return
		}
		if op == opBinary && len(data) > 0 && data[0] == 0 {
			if _, err := s.stdin.Write(data[1:]); err != nil {
				conn.json(map[string]any{"type": "error", "code": "STDIN_WRITE_FAILED", "error": err.Error()})
				return
			}
		}
	}
}

func (s *session) output(conn *socket, stdout, stderr <-chan []byte, done <-chan struct{}, ctx context.Context, cancel func()) {
	defer cancel()
	ping := time.NewTicker(30 * time.Second)
	defer ping.Stop()
	for {
		var err error
		select {
		case chunk := <-stdout:
			err = conn.send(opBinary, append([]byte{1}, chunk...))
		case chunk := <-stderr:
			err = conn.send(opBinary, append([]byte{2}, chunk...))
		case <-ping.C:
			err = conn.send(opPing, nil)
		case <-ctx.Done():
			return
		case <-done:
			drain := time.After(100 * time.Millisecond) // what it printed last may still be in its pipes
			for more := true; more; {
				select {
				case chunk := <-stdout:
					_ = conn.send(opBinary, append([]byte{1}, chunk...))
				case chunk := <-stderr:
					_ = conn.send(opBinary, append([]byte{2}, chunk...))
				case <-drain:
					more = false
				}
			}
			conn.json(map[string]any{"type": "exit", "exit_code": s.exit})
			_ = conn.send(opClose, []byte{3, 232})
			conn.Close()
			return
		}
		if err != nil {
			conn.Close()
			return
		}
	}
}

func bigEndian(n uint64) []byte {
	return binary.BigEndian.AppendUint64(nil, n)
}

// --- WebSocket (RFC 6455), the server's side ---

const (
	opText   = 1
	opBinary = 2
	opClose  = 8
	opPing   = 9
	opPong   = 10
	mostIn   = 32 << 20
)

type socket struct {
	net.Conn
	in *bufio.Reader
	mu sync.Mutex
}

func upgrade(w http.ResponseWriter, r *http.Request) (*socket, error) {
	key := r.Header.Get("Sec-WebSocket-Key")
	if key == "" || !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		http.Error(w, "a WebSocket handshake is required", http.StatusBadRequest)
		return nil, errors.New("no handshake")
	}
	conn, buffered, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return nil, err
	}
	_, err = fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
		"Sec-WebSocket-Accept: %s\r\n\r\n", accept(key))
	return &socket{Conn: conn, in: buffered.Reader}, err
}

func accept(key string) string {
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	return base64.StdEncoding.EncodeToString(sum[:])
}

func (c *socket) json(value any) {
	data, _ := json.Marshal(value)
	_ = c.send(opText, data)
}

func (c *socket) send(op byte, data []byte) error {
	head := []byte{0x80 | op}
	switch n := len(data); {
	case n < 126:
		head = append(head, byte(n))
	case n < 1<<16:
		head = append(head, 126, byte(n>>8), byte(n))
	default:
		head = append(append(head, 127), bigEndian(uint64(n))...)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.SetWriteDeadline(time.Now().Add(10 * time.Second))
	_, err := c.Write(append(head, data...))
	return err
}

// read returns the next whole message; pings are answered on the way.
func (c *socket) read() (byte, []byte, error) {
	var kind byte
	var message []byte
	for {
		_ = c.SetReadDeadline(time.Now().Add(60 * time.Second))
		op, last, data, err := c.frame()
		switch {
		case err != nil:
			return 0, nil, err
		case op == opClose:
			_ = c.send(opClose, data)
			return 0, nil, io.EOF
		case op == opPing:
			_ = c.send(opPong, data)
		case op == opPong:
		default:
			if op != 0 {
				kind = op
			}
			message = append(message, data...)
			if last {
				return kind, message, nil
			}
		}
	}
}

func (c *socket) frame() (op byte, last bool, data []byte, err error) {
	head := make([]byte, 14)
	if _, err = io.ReadFull(c.in, head[:2]); err != nil {
		return
	}
	op, last = head[0]&15, head[0]&0x80 != 0
	size, more := uint64(head[1]&127), 0
	if size == 126 {
		more = 2
	} else if size == 127 {
		more = 8
	}
	if _, err = io.ReadFull(c.in, head[2:2+more+4]); err != nil {
		return
	}
	if more > 0 {
		size = 0
		for _, b := range head[2 : 2+more] {
			size = size<<8 | uint64(b)
		}
	}
	if head[1]&0x80 == 0 || size > mostIn {
		return 0, false, nil, errors.New("not a client's frame")
	}
	mask := head[2+more : 6+more]
	data = make([]byte, size)
	_, err = io.ReadFull(c.in, data)
	for i := range data {
		data[i] ^= mask[i&3]
	}
	return
}
