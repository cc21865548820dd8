/* Steps of a model that others can see: what tests/models/replay compares with a server.
 *
 * A model says `step(who, ACTION, outcome)` within the atomic that takes the action, and defines `abstract`, its state as
 * one number. A simulation prints steps; a verifier made with -DHISTORY takes no others than those of a file, the recorded
 * history of a server, and says at its end that it has found them. Other verifiers ignore them.
 */
#ifdef HISTORY
int position, taken, reached;
bool fits;

c_code {
    static int history[30000];
    static int length = -1;

    static void read_history(void) {
        FILE *file = fopen("history", "r");
        length = 0;
        while (file && length < 30000 && fscanf(file, "%d", &history[length]) == 1) length++;
        if (file) fclose(file);
    }

    static int is_next(int at, int action, int state) {
        if (length < 0) read_history();
        return at >= 0 && at + 1 < length && history[at] == action && history[at + 1] == state;
    }

    static void note(int at) {
        if (at >= length) { printf("ACCEPTED\n"); exit(0); }
    }
};

inline step(who, action, outcome) {
    taken = (who * 64 + action) * 16 + outcome;
    reached = abstract;
    c_code { now.fits = is_next(now.position, now.taken, now.reached); };
    if
    :: fits -> position = position + 2; c_code { note(now.position); }
    :: else -> position = -1; false /* nobody else goes on from a step that the server did not take */
    fi
}
#else
inline step(who, action, outcome) { printf("STEP %d %e %d %d\n", who, action, outcome, abstract) }
#endif

/* A stop of the process before its next step. A simulation stops seldom, so that its traces get somewhere. */
#ifdef SELDOM
#define may_stop if :: true :: true :: true :: true :: true :: true :: true :: true :: stop fi
#else
#define may_stop if :: true :: stop fi
#endif
#define stop atomic { true -> step(_pid, STOP, 0); goto stopped }
