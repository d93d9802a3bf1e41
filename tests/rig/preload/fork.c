/* A way to fork for a program without unsafe code. Preloaded into a process, this library makes
 * sync() fork the process. An alarm ends the copy after ten seconds, if the copy still runs. */

#include <unistd.h>

void sync(void) {
    if (fork() == 0) {
        alarm(10);
    }
}
