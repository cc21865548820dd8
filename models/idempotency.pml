/* A write with an idempotency key, which its client sends again: leases, take-overs, unknown outcomes, replays.
 *
 * Two servers get the request and its repeat, and a third one another repeat when they have ended. A lease may expire
 * at any moment, as that of a process that hangs, which goes on later. Promised:
 *   - the write is made at most once, and before any client is told that it was;
 *   - a repeat that comes in the end is answered, and then the write was made once.
 */
#define NOBODY 0
#define PENDING 0
#define ANSWERED 1

bool exists;          /* the record of the key in the catalog */
byte holder, attempt; /* who runs it, and in which try */
bool is_leased;
bool is_committed;    /* the record names the commit that fulfils it */
bool status;          /* PENDING or ANSWERED: the response is stored */
byte effects;         /* how often the write was made */
byte answers;
byte ended;

#define may_stop if :: true :: goto stopped fi
#define holds (exists && holder == me && attempt == tried && status == PENDING)

/* begin_request (store/idempotency.py): a new key is claimed; one whose lease has expired is taken over */
inline begin_request() {
    atomic {
        if
        :: !exists -> exists = true; holder = me; attempt = 1; tried = 1; is_leased = true; status = PENDING;
            is_committed = false; claimed = true
        :: exists && status == PENDING && !is_leased -> holder = me; attempt++; tried = attempt; is_leased = true;
            claimed = true
        :: else -> claimed = false; replayed = (status == ANSWERED)
        fi
    }
}

/* mark_requests_committed (store/idempotency.py): in the transaction that records the version, and only under the lease */
inline record_commit() {
    atomic {
#ifdef BROKEN_COMMIT_WITHOUT_LEASE
        committed = true;
#else
        committed = holds;
#endif
        if
        :: committed -> effects++; assert(effects == 1); is_committed = true
        :: else
        fi
    }
}

/* recover_response (tables/commits/recovery.py): a try that is not the first looks whether one before has committed */
inline recover() {
#ifdef BROKEN_NO_RECOVERY
    committed = false
#else
    committed = (tried > 1 && is_committed)
#endif
}

/* finish_request (store/idempotency.py): the response is stored for repeats, under the lease */
inline finish_request() {
    atomic { if :: holds -> status = ANSWERED; is_leased = false :: else fi }
}

/* release_request (store/idempotency.py): a failure that may have committed leaves the record to the next try */
inline release_request() {
#ifdef BROKEN_UNKNOWN_IS_DISCARDED
    atomic { if :: holds -> exists = false; is_leased = false :: else fi }
#else
    atomic { if :: holds -> is_leased = false :: else fi }
#endif
}

/* discard_or_release_request (store/idempotency.py): a refusal is forgotten, unless something was committed all the same */
inline discard_request() {
    atomic {
        if
        :: holds && !is_committed -> exists = false; is_leased = false
        :: holds && is_committed -> is_leased = false
        :: else
        fi
    }
}

inline answer() { atomic { assert(effects == 1); answers++; answered = true } }

/* _attempt (api/idempotency/requests.py): one server with one request */
inline attempt_request() {
    begin_request();
    may_stop;
    if
    :: claimed ->
        recover();
        if
        :: !committed ->
            may_stop;
#ifdef BROKEN_ANSWERED_EARLY
            finish_request();
            may_stop;
#endif
            if
            :: record_commit()
            :: may_fail -> record_commit(); unknown = true /* made, or not, and the connection is cut */
            :: may_fail -> unknown = true
            :: may_fail && tried == 1 -> refused = true
            fi
        :: else
        fi;
        may_stop;
        if
        :: unknown -> release_request()
        :: refused -> discard_request()
        :: !unknown && !refused && committed -> finish_request(); may_stop; answer()
        :: else /* the lease was lost: nothing was changed */
        fi
    :: !claimed && replayed -> answer()
    :: else
    fi
}

proctype Server(byte me) {
    byte tried;
    bool claimed, replayed, committed, unknown, refused, answered, may_fail;
    may_fail = true;
    attempt_request();
stopped:
    ended++
}

/* No function of ours: time passes; a process that does not renew its lease loses it, whatever it still does. */
proctype Time() {
    byte times;
    do
    :: atomic { times < 2 && is_leased -> is_leased = false; times++ }
    :: break
    od
}

/* The repeat that comes last; all leases have expired. */
proctype Later(byte me) {
    byte tried;
    bool claimed, replayed, committed, unknown, refused, answered, may_fail;
    ended == 2;
    is_leased = false;
    attempt_request();
    if
    :: !holds || !is_leased -> assert(answered)
    :: else
    fi;
stopped:
    skip
}

init { atomic { run Server(1); run Server(2); run Time(); run Later(3) } }
