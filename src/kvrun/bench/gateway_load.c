/* The two ends of `kvrun bench gateway`: a trivial streaming engine and a load client.
 *
 *   gateway_load engine PORT EVENTS INTERVAL_US
 *   gateway_load client PORT STREAMS SECONDS SPREAD_US REQUEST_FILE
 *
 * Both are single-threaded epoll loops, so that what is measured is what stands between them. The
 * engine answers every request with a head at once and EVENTS server-sent events, one each
 * INTERVAL_US; an event holds the time it was sent (CLOCK_MONOTONIC, ns). The client keeps STREAMS requests open over
 * keep-alive connections and prints one JSON object.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define MAX_FD 4096
#define BUFFER (1 << 18)
#define MAX_SAMPLES (1 << 22)

typedef struct {
  char *data;          /* engine: the request so far; client: unread bytes of the answer */
  int length;
  int events_left;     /* engine: events still to send; 0 when idle */
  int64_t due;         /* engine: when the next event is due */
  int64_t started;     /* client: when the request was sent */
  int saw_event;       /* client: whether this answer's first event has arrived */
} Stream;

static Stream streams[MAX_FD];
static int64_t *event_delay, *first_byte;
static int event_count, first_count;

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void fail(const char *what) {
  perror(what);
  exit(1);
}

static void write_all(int fd, const char *data, int length) {
  while (length > 0) {
    ssize_t sent = send(fd, data, length, MSG_NOSIGNAL);
    if (sent < 0 && errno == EAGAIN) continue;
    if (sent <= 0) return;
    data += sent;
    length -= sent;
  }
}

static void watch(int epoll, int fd) {
  struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
  if (fd >= MAX_FD || epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) < 0) fail("epoll");
  if (!streams[fd].data && !(streams[fd].data = malloc(BUFFER))) fail("malloc");
  streams[fd].length = 0;
  streams[fd].events_left = 0;
}

static void forget(int fd) {
  streams[fd].events_left = 0;
  close(fd);
}

/* Bytes of the first complete request in the buffer, or 0. */
static int complete_request(Stream *s) {
  s->data[s->length] = 0;
  char *end = strstr(s->data, "\r\n\r\n");
  if (!end) return 0;
  char *field = strcasestr(s->data, "\r\ncontent-length:");
  long body = field && field < end ? atol(field + 17) : 0;
  int total = (int)(end + 4 - s->data) + (int)body;
  return s->length >= total ? total : 0;
}

static void send_event(int fd, Stream *s, int64_t at) {
  char event[256], chunk[512];
  int size = snprintf(event, sizeof event,
                      "data: {\"t\":%020lld,\"id\":\"chatcmpl-bench\",\"object\":"
                      "\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":"
                      "{\"content\":\" word\"},\"finish_reason\":null}]}\n\n",
                      (long long)at);
  int length = snprintf(chunk, sizeof chunk, "%x\r\n%s\r\n", size, event);
  write_all(fd, chunk, length);
  if (--s->events_left == 0) write_all(fd, "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n", 24);
}

static _Noreturn void engine(int port, int events, int64_t interval) {
  static const char head[] =
      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
      "Transfer-Encoding: chunked\r\n\r\n";
  int on = 1, listener = socket(AF_INET, SOCK_STREAM, 0), epoll = epoll_create1(0);
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(listener, (void *)&address, sizeof address) || listen(listener, 1024)) fail("listen");
  watch(epoll, listener);
  int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
  watch(epoll, timer);
  int highest = timer;
  for (;;) {
    struct epoll_event ready[256];
    int count = epoll_wait(epoll, ready, 256, -1);
    for (int i = 0; i < count; i++) {
      int fd = ready[i].data.fd;
      if (fd == listener) {
        int client = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
        if (client < 0) continue;
        setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        watch(epoll, client);
        if (client > highest) highest = client;
        continue;
      }
      if (fd == timer) {
        uint64_t expired;
        if (read(timer, &expired, sizeof expired) < 0 && errno != EAGAIN) fail("timer");
        continue;
      }
      Stream *s = &streams[fd];
      ssize_t got = recv(fd, s->data + s->length, BUFFER - 1 - s->length, 0);
      if (got <= 0) {
        if (got == 0 || errno != EAGAIN) forget(fd);
        continue;
      }
      s->length += got;
      int size = complete_request(s);
      if (!size || s->events_left) continue;
      memmove(s->data, s->data + size, s->length - size);
      s->length -= size;
      s->events_left = events;
      s->due = now_ns() + interval;
      write_all(fd, head, sizeof head - 1);
    }
    int64_t now = now_ns(), next = INT64_MAX;
    for (int fd = 0; fd <= highest; fd++) {
      Stream *s = &streams[fd];
      while (s->events_left && s->due <= now) {
        send_event(fd, s, now_ns());
        s->due += interval;
      }
      if (s->events_left && s->due < next) next = s->due;
    }
    struct itimerspec when = {0};
    if (next != INT64_MAX) {
      when.it_value.tv_sec = next / 1000000000;
      when.it_value.tv_nsec = next % 1000000000;
    }
    timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL);
  }
}

static int connect_to(int port) {
  int on = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  if (connect(fd, (void *)&address, sizeof address)) fail("connect");
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return fd;
}

/* Take every complete event out of the buffer; 1 when the answer has ended. */
static int take_events(Stream *s, int64_t now) {
  s->data[s->length] = 0;
  char *at = s->data, *end;
  int done = 0;
  while ((end = strstr(at, "\n\n"))) {
    char *stamp = strstr(at, "data: {\"t\":");
    if (stamp && stamp < end) {
      if (!s->saw_event) {
        s->saw_event = 1;
        if (first_count < MAX_SAMPLES) first_byte[first_count++] = now - s->started;
      }
      if (event_count < MAX_SAMPLES) event_delay[event_count++] = now - atoll(stamp + 11);
    }
    at = end + 2;
  }
  int rest = s->length - (int)(at - s->data);
  memmove(s->data, at, rest + 1);
  s->length = rest;
  if (strstr(s->data, "\r\n0\r\n\r\n")) {
    done = 1;
    s->length = 0;
  }
  return done;
}

static int by_size(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

static double at_share(int64_t *values, int count, double share) {
  return count ? values[(int)(share * (count - 1))] / 1e9 : -1;
}

static int client(int port, int wanted, double seconds, int64_t spread, const char *path) {
  static char request[BUFFER];
  FILE *file = fopen(path, "rb");
  if (!file) fail(path);
  int size = (int)fread(request, 1, sizeof request, file), epoll = epoll_create1(0);
  fclose(file);
  event_delay = malloc(MAX_SAMPLES * sizeof *event_delay);
  first_byte = malloc(MAX_SAMPLES * sizeof *first_byte);
  int64_t began = now_ns(), end = began + (int64_t)(seconds * 1e9), last = began;
  int open = 0, errors = 0, requests = 0, started = 0;
  while (open || now_ns() < end) {
    /* Started one after the other over the spread: users do not press enter in the same instant. */
    while (started < wanted && now_ns() - began >= started * spread / wanted) {
      int fd = connect_to(port);
      watch(epoll, fd);
      streams[fd].started = now_ns();
      streams[fd].saw_event = 0;
      write_all(fd, request, size);
      started++;
      open++;
    }
    struct epoll_event ready[256];
    int count = epoll_wait(epoll, ready, 256, started < wanted ? 1 : 1000);
    if (!count && started >= wanted && now_ns() > end + 10000000000LL) break;
    for (int i = 0; i < count; i++) {
      int fd = ready[i].data.fd;
      Stream *s = &streams[fd];
      ssize_t got = recv(fd, s->data + s->length, BUFFER - 1 - s->length, MSG_DONTWAIT);
      int64_t now = now_ns();
      if (got <= 0) {
        errors++;
        open--;
        forget(fd);
        continue;
      }
      if (s->length == 0 && !s->saw_event && memcmp(s->data, "HTTP/1.1 200", 12)) errors++;
      s->length += got;
      if (!take_events(s, now)) continue;
      requests++;
      last = now;
      if (!s->saw_event) errors++;
      if (now >= end) {
        open--;
        forget(fd);
        continue;
      }
      s->saw_event = 0;
      s->started = now_ns();
      write_all(fd, request, size);
    }
  }
  int unfinished = open;
  qsort(event_delay, event_count, sizeof *event_delay, by_size);
  qsort(first_byte, first_count, sizeof *first_byte, by_size);
  printf("{\"requests\":%d,\"events\":%d,\"errors\":%d,\"seconds\":%.6f,\"first_byte_p50\":%.9f,"
         "\"first_byte_p99\":%.9f,\"event_p50\":%.9f,\"event_p99\":%.9f}\n",
         requests, event_count, errors + unfinished, (last - began) / 1e9,
         at_share(first_byte, first_count, 0.5), at_share(first_byte, first_count, 0.99),
         at_share(event_delay, event_count, 0.5), at_share(event_delay, event_count, 0.99));
  return 0;
}

int main(int argc, char **argv) {
  if (argc == 5 && !strcmp(argv[1], "engine"))
    engine(atoi(argv[2]), atoi(argv[3]), atoll(argv[4]) * 1000);
  if (argc == 7 && !strcmp(argv[1], "client"))
    return client(atoi(argv[2]), atoi(argv[3]), atof(argv[4]), atoll(argv[5]) * 1000, argv[6]);
  fprintf(stderr, "usage: gateway_load engine PORT EVENTS INTERVAL_US |"
                  " client PORT STREAMS SECONDS SPREAD_US REQUEST_FILE\n");
  return 2;
}
